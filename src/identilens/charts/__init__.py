"""The drawing kit: charts over data frames, token maps, and pages that hold them; it knows no study."""
