"""Old reports of the Dyck laboratory, until its studies draw their own."""
