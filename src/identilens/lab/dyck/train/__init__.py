"""The study dyck_train."""
