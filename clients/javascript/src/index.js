/**
 * Reports values to an overhand deployment: encoded and sealed here, in a browser or in Node.
 *
 *     import { connect } from "overhand-client";
 *     const client = await connect("https://shuffle.example", { digest });
 *     await client.report("love");
 *
 * Of a recommender, `await client.choose(contexts)` says which arm to take, and `report` what came
 * of it.
 */

export { Client, connect } from "./client.js";
export { AlreadyReported, NotCounted, OverhandError } from "./errors.js";
export { browserStore, memoryStore } from "./keeping.js";
