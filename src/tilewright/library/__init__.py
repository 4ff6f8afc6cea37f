"""``tilewright.matmul``: a caller's arrays in, the planner's kernel, the caller's kind of array out."""
