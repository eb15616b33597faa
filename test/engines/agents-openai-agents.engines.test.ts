import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { callOf } from '../environments/agent/scripted-policy.ts';
import { installOpenAiAgents } from './agents/install-python.ts';
import { liveOnce } from './agents/program.ts';
import { assertTrainedAsSampled } from './agents/trained-tokens.ts';

/** OpenAI's Agents SDK as it comes from its package, with sub-agents that run at once: `npm run test:engines`. */

const program = fileURLToPath(new URL('agents/openai_agents_program.py', import.meta.url));
const found = await installOpenAiAgents();
const skip = 'missing' in found ? `no openai-agents here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

function says(prompt: string): string {
  const turn = prompt.split('<|im_start|>assistant').length - 2;
  if (prompt.includes('You are the manager.')) {
    const [red, blue] = ['red', 'blue'].map((color) => callOf('ask_helper', { input: `Paint it ${color}.` }));
    return turn === 0 ? `Both.\n${red}\n${blue}` : 'Both are painted.';
  }
  const [, color] = /Paint it (\w+)\./.exec(prompt)!;
  return turn === 0 ? callOf('paint', { color }) : `It is ${color} now.`;
}

for (const api of ['chat', 'responses'] as const) {
  for (const how of ['whole', 'streamed'] as const) {
    test(
      `by ${api}, ${how}: an agent and its two helpers are three rows, token for token as sampled`,
      { skip },
      async (t) => {
        assert('python' in found);
        const argv = [found.python, program, api, how];
        const stored: Turn[] = [];
        const life = await liveOnce(t, { command: () => ({ argv }), says, stored });
        assert.equal(life.code, 0, life.output);
        assert.match(life.output, /Both are painted\./);
        assert.deepEqual([life.capture.turns.length, life.capture.calls.refused], [6, 0]);
        assertTrainedAsSampled(life.capture.turns, { rows: 3 });
        // A death of everything: the next attempt samples nothing again.
        const again = await liveOnce(t, { command: () => ({ argv }), says, stored });
        assert.deepEqual([again.code, again.sampled, again.capture.calls.recalled], [0, 0, 6]);
      },
    );
  }
}
