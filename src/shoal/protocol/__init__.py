"""The protocol: what a run is, and how one is carried out in its folder.

- ``run``, ``plan``, ``searched``: what a run is, the runs of a sweep, what a search draws for one
- ``folder``, ``records``, ``domainbed``: what lies in a run's folder, ours and DomainBed's
- ``machine``, ``preparing``, ``execute``: one run;  ``testing``, ``subject``: its model on data
- ``gaps``, ``diagnosis``, ``predictions``, ``keeping``, ``model``, ``chosen``: what is kept of it
- ``attempt``: one run of a sweep, whatever happens to it;  ``reasons``: why it failed;  ``hand``,
  ``workers``, ``ray_engine``, ``devices``: who carries runs out;  ``standing``, ``current``: how
  they stand
- ``estimate``, ``costs``, ``probe``, ``hardware``: what runs cost
- ``selection``, ``aggregation``, ``ranking``: from records to a table
"""
