package sdk

type pushSettings struct{}
