"""Environment variables and the cache folder, in the places where they go wrong."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

import platformdirs
import pytest

from tilewright import settings
from tilewright.errors import UsageError

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _forget() -> None:
    settings._usable.clear()
    settings._instead.clear()


def test_unset_and_empty_mean_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_BACKEND", raising=False)
    assert settings.BACKEND.value() == "auto"
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "  ")
    assert settings.BACKEND.value() == "auto"
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "Emulator")
    assert settings.BACKEND.value() == "emulator"


def test_a_bad_value_names_the_variable_and_what_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "metal")
    with pytest.raises(UsageError, match=r"TILEWRIGHT_BACKEND is 'metal': it must be one of auto, cuda, emulator"):
        settings.BACKEND.value()


def test_every_variable_is_in_the_table_and_in_the_readme() -> None:
    names = {setting.name for setting in settings.SETTINGS}
    assert all(setting.help for setting in settings.SETTINGS)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert names == set(re.findall(r"`(TILEWRIGHT_\w+)`", readme))


def test_no_other_module_reads_a_variable() -> None:
    readers = [
        path.name
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "settings.py"
        and re.search(r"environ.*TILEWRIGHT_|getenv.*TILEWRIGHT_", path.read_text("utf-8"))
    ]
    assert readers == []


def test_cache_dir_is_made_and_may_have_spaces_and_any_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tmp_path / "mein Cache ä" / "deep"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(wanted))
    assert settings.cache_dir() == wanted
    assert wanted.is_dir()
    assert list(wanted.iterdir()) == []


def test_a_relative_cache_dir_does_not_move_with_the_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "here")
    assert settings.cache_dir() == tmp_path / "here"


def test_an_unusable_folder_gives_one_warning_and_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(file / "cache"))  # fails for root too, unlike a mode
    with pytest.warns(UserWarning, match="cannot be used .* TILEWRIGHT_CACHE_DIR names another folder") as caught:
        first = settings.cache_dir()
        second = settings.cache_dir()
    assert len(caught) == 1
    assert first == second
    assert first.is_dir()
    assert file.read_text() == "not a folder"


def test_a_folder_that_fills_up_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "full"))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert settings.cache_dir() != tmp_path / "full"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_open_folder_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, 12345, 12345)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    with pytest.warns(UserWarning, match="another user's"):
        assert settings.cache_dir() != folder
    folder.chmod(0o775)  # a group's shared cache is fine, and its mode is left alone
    assert settings.cache_dir() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o775


def test_without_a_home_nothing_is_written_to_the_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unexpanded = Path("~/.cache/tilewright")  # what expanduser leaves of it for a user that has no home
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: unexpanded)
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="there is no home folder"):
        assert settings.cache_dir().is_absolute()
    assert list(tmp_path.iterdir()) == []
