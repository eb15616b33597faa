/**
 * A model that answers by rule, in a process of its own that may be killed: the same version, prompt and seed give the same
 * letters. Each answer takes MS milliseconds, and is noted before it is given.
 * `node agents-model-server.mjs PORT LOG MS`; the path of a request names the run.
 */
import { createHash } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';

const [port = '', log = '', answerMs = '0'] = process.argv.slice(2);
// Of preset:chars-0.4m.
const [endToken, firstLetter, letters] = [1, 72, 26];
const answerLetters = 3;

/** @param {unknown} value */
const digestOf = (value) => createHash('sha256').update(JSON.stringify(value)).digest();
/** @param {readonly number[]} tokens */
const nameOf = (tokens) => digestOf(tokens).toString('hex').slice(0, 16);

createServer((request, response) => {
  /** @type {Buffer[]} */
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const { digest, session, promptTokenIds: prompt, seed } = JSON.parse(Buffer.concat(parts).toString());
    const chance = digestOf([digest, seed]);
    const said = Array.from({ length: answerLetters }, (_, i) => firstLetter + ((chance[i] ?? 0) % letters));
    const tokenIds = [...said, endToken];
    // What the policy said last ends with this token: who asks has heard all up to there.
    const after = nameOf(prompt.slice(0, prompt.lastIndexOf(endToken) + 1));
    const line = {
      session: `${request.url}/${session}`,
      prompt: nameOf(prompt),
      after,
      whole: nameOf([...prompt, ...tokenIds]),
      tokens: prompt.length + tokenIds.length,
      at: Date.now(),
    };
    setTimeout(() => {
      appendFileSync(log, `${JSON.stringify(line)}\n`);
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ tokenIds, logprobs: tokenIds.map((_, i) => -0.1 - (chance[8 + i] ?? 0) / 256) }));
    }, Number(answerMs));
  });
}).listen(Number(port), '127.0.0.1', () => process.send?.('ready'));
