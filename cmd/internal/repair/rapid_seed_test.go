package repair

import (
	"flag"

	_ "pgregory.net/rapid" // registers its flags before ours are set
)

// Properties run on a fixed seed, so that what fails fails everywhere;
// -rapid.seed=0 draws another.
var _ = flag.Set("rapid.seed", "20161130")
