"""The study dyck_analyse."""
