"""The study dyck_prune."""
