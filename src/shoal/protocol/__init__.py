"""The protocol: what a run is, and how one is carried out in its folder."""
