// Command mutants shows that the checks can fail: it plants one bug after the other, each in a copy of a file that only the
// compiler sees (go test -overlay), and runs the tests that are to catch it. It prints what caught each, and fails if one
// lives on.
//
//	go run ./test/mutants [NAME…]
//
// What is planted must fit the code: a test beside the list fails when it does not any more. Whoever changes the code
// changes the bug with it.
package main
