// Package perf has the RPCs of Mercury's own performance programs, so that each side can measure the other.
//
//	hg_rate, hg_first, hg_bw_read, hg_bw_write (C) ─► Serve
//	Rate, Bandwidth                                ─► hg_perf_server (C), or Serve
//
// The programs are started with one server process and one client process. Serve keeps at most 1 GiB of buffers for all its clients.
package perf
