"""From frames to files: inspection, encoding, storage."""
