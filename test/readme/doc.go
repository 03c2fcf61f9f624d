// Package readme runs what the README says. A fenced block is executed by these rules, in the order of the text:
//
//	```sh         a bash script, run in a fresh copy of the project; it has to end with status 0
//	```sh serve   each line is started. One that ends has to do so with status 0; one that stays has to become ready, and
//	              goes on until the end of the text
//	```yaml       has to be accepted as a configuration; if its first line is a comment that names a file, like
//	              "# lapse.yaml: …", the file is written into the copy before anything is run
//	```… norun    is not run: it needs what a test does not have
//
// In these, localhost:8080 stands for the address of whatever was started last, the tokens that `lapse dev` has made are
// in $SHOP, $GATEWAY and $STAFF, its payment secret in $PAYMENT_SECRET, curl fails when it is answered
// an error, and addresses of services that a test has elsewhere (http://namesrv:9876, files in /run/secrets/) stand for
// those. A line `make test` is left out, since it is what runs this. Blocks of other languages are not looked at.
package readme
