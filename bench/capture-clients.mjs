/**
 * Programs that ask captured policies, in a process of their own: each continues its conversation, one call after the
 * other. With a rate, their calls come evenly over time, whenever the answers do.
 */
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';

const [{ programs, calls, atOnce, ratePerS }] = /** @type {any} */ (await once(process, 'message'));
const agent = new Agent({ keepAlive: true, maxSockets: atOnce });

/** @param {{ socketPath: string, key: string }} program @param {string} body @returns {Promise<{ choices: any[] }>} */
function ask({ socketPath, key }, body) {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const sent = request(
      {
        agent,
        socketPath,
        method: 'POST',
        path: '/v1/chat/completions',
        headers: { ...headers, 'content-length': Buffer.byteLength(body) },
      },
      (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (chunk) => (text += chunk));
        response.on('end', () => (response.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(text))));
      },
    );
    sent.on('error', reject);
    sent.end(body);
  });
}

const tools = [
  {
    type: 'function',
    function: {
      name: 'run',
      description: 'Runs a command.',
      parameters: { type: 'object', properties: { command: { type: 'string' } } },
    },
  },
];

/** @param {{ socketPath: string, key: string }} program @param {number} n @param {number[]} took */
async function play(program, n, took) {
  /** @type {object[]} */
  const messages = [
    { role: 'system', content: 'You are a careful agent.' },
    { role: 'user', content: `Task ${n}. ${'Make the test pass. '.repeat(20)}` },
  ];
  for (let call = 0; call < calls; call++) {
    if (ratePerS) await delay(Math.max(0, from + (call * programs.length + n) * (1000 / ratePerS) - performance.now()));
    const body = JSON.stringify({ model: 'policy', messages, tools });
    const asked = performance.now();
    const { choices } = await ask(program, body);
    took.push(performance.now() - asked);
    const { message } = choices[0];
    messages.push(message);
    const [made] = message.tool_calls ?? [];
    messages.push(
      made
        ? { role: 'tool', tool_call_id: made.id, content: `output ${call}: ${'x '.repeat(100)}` }
        : { role: 'user', content: 'Go on.' },
    );
  }
}

/** @type {number[]} */
const took = [];
const from = performance.now();
const waiting = programs.map((/** @type {any} */ program, /** @type {number} */ n) => () => play(program, n, took));
await Promise.all(
  Array.from({ length: atOnce }, async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) await next();
  }),
);
agent.destroy();
process.send?.({ took, seconds: (performance.now() - from) / 1000 });
process.disconnect();
