package bloom

import _ "github.com/hapax-dev/hapax/engine"
