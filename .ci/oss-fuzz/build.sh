#!/bin/bash -eu
# Builds every fuzz target of the library for OSS-Fuzz, in the root of a checkout. compile_native_go_fuzzer_v2 is of the image
# gcr.io/oss-fuzz-base/base-builder-go: package, function, name of the program.
export GOWORK=off # the modules in contrib and cmd/qs have targets of their own, which need what only they need
go get github.com/AdamKorcz/go-118-fuzz-build/testing

module=$(go list -m)
grep -rlE --include='*_test.go' --exclude-dir=contrib --exclude-dir=cmd --exclude-dir=plugin '^func Fuzz' . | sort | while read -r file; do
	package=$(dirname "${file#./}")
	grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$file" | sed 's/^func //' | while read -r target; do
		compile_native_go_fuzzer_v2 "$module/$package" "$target" "${package//\//_}_$target"
	done
done
