"""The command line: ``tilewright climb | verify | source | diff | doctor | cache``.

Data goes to stdout, talk to stderr. Exit codes: 0 ok, 1 a check failed, 2 the request makes no sense, 3 a device or
compiler is missing, 130 interrupted.
"""


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    from tilewright.cli.app import app  # typer takes a moment to load: not for whoever imports the package

    app(prog_name="tilewright")
