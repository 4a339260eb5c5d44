package group

// JoinAs is Join with an incarnation that a clock would have given.
var JoinAs = join
