import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import path from 'node:path';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { callOf } from '../environments/agent/scripted-policy.ts';
import { installMiniSweAgent } from './agents/install-python.ts';
import { liveOnce, type ProgramLife, type ProgramPlace } from './agents/program.ts';
import { openRealModel } from './agents/real-model.ts';
import { assertTrainedAsSampled } from './agents/trained-tokens.ts';

/** mini-swe-agent as it comes from its package, in front of a captured policy: `npm run test:engines`. */

const found = await installMiniSweAgent();
const skip = 'missing' in found ? `no mini-swe-agent here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

/** What they print differs in each sandbox: paths, times, durations, ids of processes, addresses, ports, commits. */
const commands = [
  'pwd; ls -la; date',
  'printf "def add(a, b):\\n    return a - b\\n" > calc.py; printf "import unittest\\nfrom calc import add\\n\\nclass T(unittest.TestCase):\\n    def test_add(self):\\n        self.assertEqual(add(1, 2), 3)\\n" > test_calc.py; python3 -m unittest 2>&1',
  'python3 -c "import tempfile, os; print(tempfile.mkdtemp(), object(), \'pid\', os.getpid())"',
  'git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first && git log -1',
  'sed -i s/-/+/ calc.py; python3 -m unittest 2>&1; stat calc.py | tail -4',
  "python3 -c \"import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print('port', s.getsockname()[1])\"; time true; date -Iseconds; date +%s",
  'git diff; git status --short; sleep 0.01 & echo pid $!; wait',
];
const last = 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT';

/** It works on what it is shown: the folder of the first output. */
function says(prompt: string): string {
  const turn = prompt.split('<|im_start|>assistant').length - 2;
  const [, folder = '.'] = /"output": "(\/tmp\/[\w./-]+)\\n/.exec(prompt) ?? [];
  const command = commands[turn] ?? last;
  return `Step ${turn}.\n${callOf('bash', { command: turn === 0 || command === last ? command : `cd ${folder} && ${command}` })}`;
}

const command = ({ home, key, openAi }: ProgramPlace) => {
  assert('python' in found);
  return {
    argv: [path.join(path.dirname(found.python), 'mini'), '-y', '--exit-immediately', '-t', 'Make the test pass.', '-m', 'openai/policy', '-o', path.join(home, 'trajectory.json')], // prettier-ignore
    env: {
      MSWEA_CONFIGURED: 'true',
      MSWEA_COST_TRACKING: 'ignore_errors',
      MSWEA_GLOBAL_CONFIG_DIR: home,
      LITELLM_LOCAL_MODEL_COST_MAP: 'True',
      OPENAI_API_BASE: openAi,
      OPENAI_API_KEY: key,
    },
  };
};

const isDone = ({ code }: ProgramLife): boolean => code !== null;
const live = (t: TestContext, stored: Turn[], killAt?: { readonly turns: number; readonly afterMs: number }) =>
  liveOnce(t, { command, says, stored, ...(killAt ? { killAt } : {}) });

test('its rows are token for token what was sampled', { skip }, async (t) => {
  const life = await live(t, []);
  assert.equal(life.code, 0, life.output);
  assert.match(life.output, /OK/);
  assert.equal(life.capture.turns.length, commands.length + 1);
  assertTrainedAsSampled(life.capture.turns, { rows: 1 });
});

test(
  'killed after each of its turns, at least 95 % of those that are finished are answered from the store',
  { skip },
  async (t) => {
    const stored: Turn[] = [];
    let [finished, recalled] = [0, 0];
    for (let nth = 0; ; nth++) {
      const before = stored.length;
      // Before the answer leaves, and after its command ran.
      const life = await live(t, stored, { turns: 1, afterMs: nth % 2 === 0 ? 0 : 400 });
      finished += before;
      recalled += life.capture.calls.recalled;
      const aside = life.capture.setAside();
      if (aside?.first) t.diagnostic(`life ${nth}: ${JSON.stringify(aside.first)}`);
      if (isDone(life)) {
        assertTrainedAsSampled(life.capture.turns, { rows: 1 });
        break;
      }
      assert.ok(nth < 3 * commands.length, 'it gets nowhere');
    }
    t.diagnostic(`answered from the store: ${recalled} of ${finished}; sampled in all lives: ${stored.length}`);
    assert.ok(recalled >= 0.95 * finished, `${recalled} of ${finished}`);
  },
);

test('a real model beside it: whatever it says, its rows are token for token what was sampled', { skip }, async (t) => {
  const model = await openRealModel();
  if (model === null) return t.skip('SmolLM2 cannot be fetched');
  t.after(() => model.close());
  const argvOf: typeof command = (place) => {
    const { argv, env } = command(place);
    return { argv: [...argv, '-c', 'mini.yaml', '-c', 'agent.step_limit=3'], env };
  };
  const life = await liveOnce(t, { command: argvOf, says: model, stored: [], maxTokens: 48, limitMs: 600_000 });
  assert.notEqual(life.code, null, life.output);
  const { turns } = life.capture;
  assert.ok(turns.length >= 2, life.output);
  for (const { logprobs } of turns) assert.ok(logprobs!.every((logprob) => logprob <= 0 && logprob > -30));
  t.diagnostic(`${turns.length} turns of ${turns.map(({ tokenIds }) => tokenIds.length).join(', ')} tokens; prompts of ${turns.map(({ promptTokenIds }) => promptTokenIds.length).join(', ')}`); // prettier-ignore
  // It leaves a reply without a call out of its history, so the next prompt does not continue from it.
  assertTrainedAsSampled(turns, { rows: turns.length });
});
