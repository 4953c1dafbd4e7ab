// Publishes messages of all sizes and QoS, and expects them back in order.
// node echo.js URL VERSION [CAFILE]
import assert from "node:assert"
import fs from "node:fs"
import mqtt from "mqtt"

const [url, version, cafile] = process.argv.slice(2)
const client = await mqtt.connectAsync(url, {
  protocolVersion: Number(version),
  ca: cafile && fs.readFileSync(cafile),
  reconnectPeriod: 0,
})

const sent = []
for (let i = 0; i < 300; i++) sent.push({ qos: i % 3, payload: `${i} ` + "x".repeat(i * 10) })
sent.push({ qos: 1, payload: "large " + "y".repeat(300_000) })
sent.push({ qos: 2, payload: "last" })

const received = { 0: [], 1: [], 2: [] } // order holds within one QoS
const all = new Promise((resolve, reject) => {
  let n = 0
  client.on("message", (topic, payload, packet) => {
    received[packet.qos].push(payload.toString())
    if (++n === sent.length) resolve()
  })
  client.on("error", reject)
  client.on("close", () => reject(new Error("the connection has ended")))
})

const granted = await client.subscribeAsync(`js/${version}/#`, { qos: 2 })
assert.deepStrictEqual(granted.map((g) => g.qos), [2])
await Promise.all(sent.map((m) => client.publishAsync(`js/${version}/a`, m.payload, { qos: m.qos })))
await all
for (const qos of [0, 1, 2]) {
  assert.deepStrictEqual(received[qos], sent.filter((m) => m.qos === qos).map((m) => m.payload))
}
client.removeAllListeners("close")
await client.endAsync()
console.log("ok", sent.length)
