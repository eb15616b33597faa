/** A program that starts again after a death: its calls are answered from the store, in another sandbox too. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import { SandboxNames } from '../../../backends/environments/agent/capture/sandbox-names.ts';
import { openCapture } from '../../../backends/environments/agent/capture/capture.ts';
import type { Capture, ResumedCalls } from '../../../backends/environments/agent/capture/types.ts';
import { callOf, scriptedPolicy } from './scripted-policy.ts';

/** What a sandbox has of its own. */
interface Sandbox {
  readonly folder: string;
  readonly clock: string;
  readonly pid: number;
}

const first: Sandbox = { folder: '/tmp/agent-k2x9', clock: '2026-11-30 03:05:20', pid: 48213 };
const second: Sandbox = { folder: '/tmp/agent-z7', clock: '2026-12-01 14:00:01', pid: 977 };

/** The model works where it is told to: it repeats the folder, and the process that it started. */
function says(prompt: string): string {
  const [, folder = '?'] = /work in (\/tmp\/[\w-]+)/.exec(prompt) ?? [];
  const turn = prompt.split('<|im_start|>assistant').length - 2;
  if (turn === 4) return `Done: ${/pid (\d+)/.exec(prompt)![1]} wrote ${folder}/out.`;
  return `Step ${turn}.\n${callOf('run', { command: `make -C ${folder} step${turn}` })}`;
}

const output = (command: string, { folder, clock, pid }: Sandbox): string =>
  `${clock} make: Entering directory '${folder}'\nstarted pid ${pid}\n${command} took 0.0${pid % 7}s`;

interface Life {
  readonly capture: Capture;
  readonly asked: number;
  /** Commands as the program got them. */
  readonly commands: readonly string[];
  readonly last: string;
  readonly messages: readonly object[];
}

/** One attempt of the program. `diesAfter` = turns that it hears; `oddly` = the output of that turn is another one. */
async function live(
  t: TestContext,
  sandbox: Sandbox,
  stored: Turn[],
  { diesAfter = Infinity, oddly = -1, in: saved }: Fate = {},
): Promise<Life> {
  const policy = scriptedPolicy({ says, recorded: [...stored], onTurn: (turn) => void stored.push(turn) });
  const resumed = saved ? { resumed: saved.capture.heard() } : {};
  const capture = await openCapture({ policy, model: 'policy', signal: new AbortController().signal, ...resumed });
  t.after(() => capture.close());
  const port = await capture.listenOnLoopback();
  const messages: object[] = [...(saved?.messages ?? beginning(sandbox))];
  const commands: string[] = [];
  for (let turn = capture.calls.kept; turn < diesAfter; turn++) {
    const response = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'x-api-key': capture.key },
      body: JSON.stringify({ model: 'policy', messages, tools: [tool] }),
    });
    const { choices } = (await response.json()) as { choices: [{ message: ToldMessage }] };
    const { message } = choices[0];
    messages.push(message);
    const [call] = message.tool_calls ?? [];
    if (!call) return { capture, asked: policy.asked.length, commands, last: message.content!, messages };
    const { command } = JSON.parse(call.function.arguments) as { command: string };
    commands.push(command);
    const content = turn === oddly ? 'make: *** No rule.' : output(command, sandbox);
    messages.push({ role: 'tool', tool_call_id: call.id, content });
  }
  return { capture, asked: policy.asked.length, commands, last: '', messages };
}

interface Fate {
  readonly diesAfter?: number;
  readonly oddly?: number;
  /** It goes on with what this life had, in a snapshot of its sandbox. */
  readonly in?: Life;
}

function beginning({ folder, clock }: Sandbox): object[] {
  return [
    { role: 'system', content: `You work in ${folder}. It is ${clock}.` },
    { role: 'user', content: 'Make it.' },
  ];
}

interface ToldMessage {
  readonly content: string | null;
  readonly tool_calls?: readonly { readonly id: string; readonly function: { readonly arguments: string } }[];
}

const tool = {
  type: 'function',
  function: { name: 'run', description: 'Runs it.', parameters: { type: 'object', properties: {} } },
};

describe('an agent that died', () => {
  for (const after of [1, 2, 3, 4]) {
    test(`after turn ${after} of 5 gets these from the store, in a sandbox with other paths, times and processes`, async (t) => {
      const whole: Turn[] = [];
      const undisturbed = await live(t, first, whole);
      assert.equal(undisturbed.last, 'Done: 48213 wrote /tmp/agent-k2x9/out.');
      const stored: Turn[] = [];
      await live(t, first, stored, { diesAfter: after });
      assert.equal(stored.length, after);
      const { capture, asked, commands, last } = await live(t, second, stored);
      assert.deepEqual([asked, capture.calls.recalled, capture.calls.sampled], [5 - after, after, 5 - after]);
      assert.equal(capture.setAside(), null);
      assert.equal(commands[0], 'make -C /tmp/agent-z7 step0', 'the program hears the names of its own sandbox');
      assert.equal(last, 'Done: 977 wrote /tmp/agent-z7/out.');
      // The model sees those of the first, once it has seen any: its words are those of the undisturbed rollout.
      assert.deepEqual(
        capture.turns.map(({ text }) => text),
        undisturbed.capture.turns.map(({ text }) => (after === 1 ? text.replace('48213', '977') : text)),
      );
      assert.equal(trajectoryRows(capture.turns, 'interleaved').length, 1);
    });
  }

  test('twice, in a third sandbox: what both attempts finished is there', async (t) => {
    const stored: Turn[] = [];
    await live(t, first, stored, { diesAfter: 2 });
    await live(t, second, stored, { diesAfter: 4 });
    assert.equal(stored.length, 4);
    const third = await live(t, { folder: '/tmp/x', clock: '2027-01-01 00:00:00', pid: 31000 }, stored);
    assert.deepEqual([third.asked, third.capture.calls.recalled], [1, 4]);
    assert.equal(third.last, 'Done: 31000 wrote /tmp/x/out.');
  });

  test('and goes on in a snapshot from an answer with instructions: new ones take their place', async (t) => {
    const stored: Turn[] = [];
    const prompts: string[] = [];
    const says = (prompt: string): string => (prompts.push(prompt), `a bird, ${prompts.length}`);
    const life = async (saved?: Capture) => {
      const policy = scriptedPolicy({ says, recorded: [...stored], onTurn: (turn) => void stored.push(turn) });
      const resumed = saved ? { resumed: JSON.parse(JSON.stringify(saved.heard())) as ResumedCalls } : {};
      const capture = await openCapture({ policy, model: 'policy', signal: new AbortController().signal, ...resumed });
      t.after(() => capture.close());
      const url = `http://127.0.0.1:${await capture.listenOnLoopback()}`;
      const ask = async (body: object): Promise<string> => {
        const instructions = 'You are a dictionary.';
        const sent = JSON.stringify({ model: 'policy', instructions, ...body });
        const response = await fetch(`${url}/v1/responses`, { method: 'POST', headers: { 'x-api-key': capture.key }, body: sent }); // prettier-ignore
        return ((await response.json()) as { id: string }).id;
      };
      return { capture, ask };
    };
    const one = await life();
    const first = await one.ask({ input: 'What is an owl?' });
    const two = await life(one.capture);
    const second = await two.ask({ input: 'And a cat?', previous_response_id: first });
    const three = await life(two.capture);
    await three.ask({ input: 'And a dog?', previous_response_id: second });
    assert.deepEqual(prompts.map((prompt) => prompt.split('You are a dictionary.').length - 1), [1, 1, 1]); // prettier-ignore
    assert.equal(three.capture.calls.kept, 2);
    assert.equal(trajectoryRows(three.capture.turns, 'interleaved').length, 1);
  });

  test('and goes on in a snapshot of its second sandbox: its history is known, under the names of the first', async (t) => {
    const whole: Turn[] = [];
    const undisturbed = await live(t, first, whole);
    const stored: Turn[] = [];
    await live(t, first, stored, { diesAfter: 2 });
    const saved = await live(t, second, stored, { diesAfter: 3 });
    assert.equal(stored.length, 3);
    const third = await live(t, second, stored, { in: saved });
    const { kept, recalled, sampled } = third.capture.calls;
    assert.deepEqual([kept, recalled, sampled, third.asked], [3, 0, 2, 2]);
    assert.deepEqual(third.commands, ['make -C /tmp/agent-z7 step3'], 'it does only what came after');
    assert.equal(third.last, 'Done: 977 wrote /tmp/agent-z7/out.');
    assert.deepEqual(
      third.capture.turns.map(({ text }) => text),
      undisturbed.capture.turns.map(({ text }) => text),
    );
    assert.equal(trajectoryRows(third.capture.turns, 'interleaved').length, 1);
    assert.equal(third.capture.setAside(), null);
  });

  test('and does something else: from there on it is sampled, and the rest of the old branch is set aside by name', async (t) => {
    const stored: Turn[] = [];
    await live(t, first, stored, { diesAfter: 4 });
    const { capture, asked } = await live(t, second, stored, { oddly: 1 });
    assert.deepEqual([capture.calls.recalled, asked], [2, 3]);
    const aside = capture.setAside()!;
    assert.deepEqual(
      aside.turns,
      stored.slice(2, 4).map(({ call }) => call!.id),
    );
    assert.equal(aside.first!.after, stored[1]!.call!.id);
    assert.match(aside.first!.was, /Entering directory/);
    assert.match(aside.first!.is, /No rule/);
    const ids = capture.turns.map(({ call }) => call!.id);
    assert.ok(aside.turns.every((id) => !ids.includes(id)));
    // An attempt after this one finds the new branch, and may find the old one.
    const again = await live(t, first, stored, { oddly: 1 });
    assert.deepEqual([again.asked, again.capture.calls.recalled], [0, 5]);
    const old = await live(t, first, stored);
    assert.deepEqual([old.capture.calls.recalled, old.asked], [4, 1]);
  });

  test('parallel calls are answered from the store in whatever order they come', async (t) => {
    const stored: Turn[] = [];
    const questions = Array.from({ length: 8 }, (_, i) => `work in /tmp/p${i % 4}`);
    const play = async (order: readonly string[]) => {
      const policy = scriptedPolicy({
        says: (prompt, { seed }) => `${/p\d/.exec(prompt)![0]} ${seed}`,
        recorded: [...stored],
        onTurn: (turn) => void stored.push(turn),
      });
      const capture = await openCapture({ policy, model: 'policy', signal: new AbortController().signal });
      t.after(() => capture.close());
      const port = await capture.listenOnLoopback();
      const ask = async (content: string): Promise<void> => {
        const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content }] });
        const headers = { 'x-api-key': capture.key };
        await (await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, { method: 'POST', headers, body })).text();
      };
      await Promise.all(order.map(ask));
      return { policy, capture };
    };
    const before = await play(questions);
    const told = before.capture.turns.map(({ text }) => text).toSorted();
    assert.equal(new Set(told).size, 8, 'equal calls have seeds of their own');
    const { policy, capture } = await play(questions.toReversed());
    assert.deepEqual([policy.asked.length, capture.calls.recalled], [0, 8]);
    assert.deepEqual(capture.turns.map(({ text }) => text).toSorted(), told);
  });
});

describe('what differs between two sandboxes', () => {
  const agree = (recorded: string, live: string): boolean => new SandboxNames().agree([{ recorded, live }]) !== null;
  for (const [what, recorded, live] of [
    ['temporary paths', 'cd /tmp/tmpab12cd_9/src', 'cd /tmp/tmpzz00xy_1/src'],
    ['times of day', 'Nov 30 03:05 a.txt', 'Dec  1 14:59 a.txt'],
    ['dates of mails', 'Date: Mon Nov 30 03:05:20 UTC 2026', 'Date: Tue Dec  1 14:59:01 UTC 2026'],
    ['dates of logs', '[30/Nov/2026:03:05:20 +0000] GET', '[01/Dec/2026:14:59:01 +0000] GET'],
    ['ISO times', '2026-11-30T03:05:20.123Z ok', '2026-12-01T14:59:01.9Z ok'],
    ['durations', '====== 3 passed in 0.12s =======', '===== 3 passed in 12.40s ======'],
    ['the time that a command took', 'real\t0m0.004s', 'real\t0m1.310s'],
    [
      'what a command used',
      '0.00user 0.00system 0:00.05elapsed 0%CPU (0avgtext+0avgdata 1076maxresident)k\n24inputs+0outputs (1major+72minor)',
      '0.01user 0.00system 0:01.00elapsed 82%CPU (0avgtext+0avgdata 992maxresident)k\n0inputs+0outputs (0major+7minor)',
    ],
    ['how busy the machine is', 'load average: 0.00, 0.01, 0.05', 'load average: 14.33, 15.39, 18.02'],
    ['ids of processes', '[1] 48213\npid 48213, process 48213', '[1] 977\npid 977, process 977'],
    ['addresses of objects', '<object at 0x7f3a1c00>', '<object at 0x55d0ffe8>'],
    ['ports', 'http://127.0.0.1:45123/ on port 45123', 'http://127.0.0.1:33001/ on port 33001'],
    ['contents that git compares', 'index 6b124fd..869bc03 100644', 'index a0d910a..6769067 100644'],
    ['commits', 'HEAD is now at 3fa9c1e', 'HEAD is now at 0be77d2'],
    [
      'what JSON escapes',
      String.raw`a\npid 48213\nNov 30 03:05 b\t0x7f3a1c00\n/tmp/a1`,
      String.raw`a\npid 977\nDec  1 14:59 b\t0x55d0ffe8\n/tmp/b2`,
    ],
    ['names that are made of paths', 'in /tmp/agent-fP/a: -tmp-agent-fP-a', 'in /tmp/agent-cNWF/a: -tmp-agent-cNWF-a'],
    ['ids by their label', 'Chunk ID: 2dbcbf\\nok', 'Chunk ID: 73ab2f\\nok'],
    ['UUIDs', 'id 3f2504e0-4f89-11d3-9a0c-0305e82c3301', 'id 9b2504e0-4f89-11d3-9a0c-0305e82c3302'],
  ] as const) {
    test(`${what} are no other call`, () => assert.ok(agree(recorded, live)));
  }
  for (const [what, recorded, live] of [
    ['other words', 'No such file', 'Permission denied'],
    ['another number', '3 passed', '2 passed'],
    ['another file', '/tmp/tmpab12cd_9/a.py', '/tmp/tmpab12cd_9/b.py'],
    ['one name for two', 'cp /tmp/a1 /tmp/b1', 'cp /tmp/a2 /tmp/a2'],
    ['two names for one', 'cp /tmp/a1 /tmp/a1', 'cp /tmp/a2 /tmp/b2'],
    ['more', 'a /tmp/a1', 'a /tmp/a1 b'],
  ] as const) {
    test(`${what}: another call`, () => assert.ok(!agree(recorded, live)));
  }

  test('names go both ways, also where a sandbox has those of the other for something else', () => {
    const names = new SandboxNames();
    const texts = [{ recorded: 'pid 4001 and pid 4002 in /tmp/aa', live: 'pid 4002 and pid 4001 in /tmp/bbb' }];
    names.learn(names.agree(texts)!);
    assert.equal(names.toLive('kill 4001; rm /tmp/aa/x /tmp/aabb'), 'kill 4002; rm /tmp/bbb/x /tmp/aabb');
    assert.equal(names.toRecorded('4001 is gone, see /tmp/bbb.'), '4002 is gone, see /tmp/aa.');
  });
});
