// A client of the benchmark of Cutovers that resolves as Node does.
//
// Usage: client PORT PAUSE NAME...
//
// Every PAUSE milliseconds it asks the next NAME: it opens a connection, sends a line and reads a line. When its input ends, it
// prints the numbers of requests and of those that failed.
"use strict";

const net = require("net");

// For a request: a machine that stands still for a while fails nothing. Node gives up an address after 250 ms if there are
// others, which a busy machine may need for its own timers.
const PATIENCE = 25000;
net.setDefaultAutoSelectFamilyAttemptTimeout?.(PATIENCE);

function ask(host, port) {
  return new Promise((resolve, reject) => {
    const connection = net.connect({ host, port }, () => connection.write("?\n"));
    let answer = "";
    connection.setTimeout(PATIENCE, () => connection.destroy(new Error("no answer in time")));
    connection.on("data", (data) => {
      answer += data;
      if (answer.endsWith("\n")) {
        connection.destroy();
        resolve();
      }
    });
    connection.on("end", () => reject(new Error("the connection ended")));
    connection.on("error", reject);
  });
}

async function main([port, pause, ...names]) {
  let ended = false;
  process.stdin.on("end", () => { ended = true; });
  process.stdin.resume();
  let requests = 0;
  let failed = 0;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, Number(pause)));
    if (ended) break;
    const name = names[requests % names.length];
    requests += 1;
    try {
      await ask(name, Number(port));
    } catch (error) {
      failed += 1;
      console.error(`${name}: ${error.message || error.code}`);
    }
  }
  console.log(`${requests} ${failed}`);
}

main(process.argv.slice(2));
