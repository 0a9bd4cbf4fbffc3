package events

// Queries is the statements that run for every message, attempt or listed peer.
var Queries = map[string]string{
	"next delivery":       nextDelivery,
	"live subscriptions":  liveSubscriptions,
	"subscription by key": subscriptionByKey,
	"of a client":         subscriptionsOfClient,
	"of a message":        deliveriesOfMessage,
	"deliveries":          everyDelivery,
	"dead letters":        deadDeliveries,
	"target":              selectTargets + `WHERE owner = ? AND peer_id = ?`,
}
