"""Why an engine ended, what to change before the next start, and the record that is kept of it."""
