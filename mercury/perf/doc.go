// Package perf implements the RPCs of the performance programs of Mercury 2.4, so that each side can measure the
// other. Of the programs of Mercury 2.3 only hg_rate has the same RPCs.
//
//	hg_rate, hg_first, hg_bw_read, hg_bw_write (C) ─► Serve
//	Rate, Bandwidth                                ─► hg_perf_server (C), or Serve
//
// Start the programs with one server process and one client process. hg_perf_server keeps the buffers of the first
// Bandwidth, and does not respond to a later one with a larger Size or InFlight: begin with the largest, or restart
// it. Serve keeps at most 1 GiB of buffers for all its clients.
package perf
