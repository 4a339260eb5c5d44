package yokan

// PutSegments is for tests.
var PutSegments = putSegments
