package bench

func demoChild([]byte, *voice) error { return nil }
