"""The study dyck_construct."""
