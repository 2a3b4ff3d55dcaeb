"""Old results of the Dyck laboratory, until its studies have their own."""
