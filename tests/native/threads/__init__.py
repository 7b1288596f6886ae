"""A switch and its workers as threads of one process, under the thread sanitizer."""
