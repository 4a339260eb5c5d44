// Package group tracks the members of a service: which processes have joined, are suspected of
// having failed, have failed, left, or returned. It uses hashicorp/memberlist, an implementation of
// the SWIM protocol, and applies membership changes to the calls of a Node.
//
//	memberlist ─► Source ─► Group ─┬─► View, with an epoch ─► Owners, ByKey
//	                               ├─► OnEvent, Events
//	                               ├─► Watch: a qs.Resolver
//	                               └─► na.Context.Disconnect: calls to a member that failed end at once
//
// A view is the state as seen by one process. The views of two processes may differ, permanently if
// the network is partitioned. Anything on which all processes must agree, such as the placement of
// data, must be determined by other means.
//
// Package group is a separate module so that the library does not depend on memberlist.
package group
