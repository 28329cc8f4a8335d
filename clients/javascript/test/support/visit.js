/** So many people, each with a client of its own, who like the first arm: prints which they took. */

import { connect } from "../../src/index.js";

const [url, digest, people, contexts] = process.argv.slice(2);
const arms = [];
for (let person = 0; person < Number(people); person++) {
  const client = await connect(url, { digest, store: null });
  const arm = await client.choose(JSON.parse(contexts));
  await client.report(arm === 0 ? 1 : 0);
  arms.push(arm);
}
console.log(JSON.stringify(arms));
