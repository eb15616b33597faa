/** A program whose tools print another text each time, in a way that no pattern knows, and that dies after each turn. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { hash32 } from '../../../core/random.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import { isAlike } from '../../../backends/environments/agent/capture/volatile-outputs.ts';
import type { Capture } from '../../../backends/environments/agent/capture/types.ts';
import { keptNotes, open, post } from './open-capture.ts';
import { callOf } from './scripted-policy.ts';

const turnsOfAgent = 6;

const says = (prompt: string): string => {
  const turn = prompt.split('<|im_start|>assistant').length - 2;
  const [, seen = 'nothing'] = /.*Available (\d+)/s.exec(prompt) ?? [];
  return turn === turnsOfAgent - 1 ? `Done, last seen: ${seen}.` : `Step ${turn}.\n${callOf('disk', { step: turn })}`;
};

const tool = {
  type: 'function',
  function: { name: 'disk', description: '', parameters: { type: 'object', properties: {} } },
};

type Output = (life: number, step: number) => string;

/** `df` and `ps`: the numbers are others in each life, and one line more or less. */
const df: Output = (life, step) => {
  const number = (what: string): number => hash32(what, life, step) % 90_000;
  const processes = Array.from(
    { length: 5 + ((life + step) % 3) },
    (_, i) => `root ${number(`pid ${i}`)} 0.${i} worker`,
  );
  return `Filesystem 1K-blocks Used\n/dev/vda ${number('size')} ${number('used')}\nAvailable ${number('free')}\n${processes.join('\n')}`;
};
/** Nothing in it is as before. */
const noise: Output = (life, step) =>
  Array.from({ length: 8 }, (_, i) => `w${hash32('word', life, step, i).toString(36)}`).join(' ');

interface Life {
  readonly capture: Capture;
  readonly asked: number;
  /** null = it was killed. */
  readonly last: string | null;
}

async function live(
  t: TestContext,
  stored: Turn[],
  output: (step: number) => string,
  { diesAfter = Infinity, notes = keptNotes() } = {},
): Promise<Life> {
  const script = { says, recorded: [...stored], onTurn: (turn: Turn) => void stored.push(turn) };
  const { capture, policy, url } = await open(t, script, { notes });
  const messages: object[] = [{ role: 'user', content: 'Look at the disk.' }];
  for (let turn = 0; turn < diesAfter; turn++) {
    const { body } = await post(`${url}/v1/chat/completions`, capture, { model: 'policy', messages, tools: [tool] });
    const [{ message }] = body['choices'] as [{ message: { content: string; tool_calls?: { id: string }[] } }];
    messages.push(message);
    const [call] = message.tool_calls ?? [];
    if (call === undefined) return { capture, asked: policy.asked.length, last: message.content };
    messages.push({ role: 'tool', tool_call_id: call.id, content: output(turn) });
  }
  await capture.close();
  return { capture, asked: policy.asked.length, last: null };
}

describe('a program that is killed after each turn', () => {
  for (const [what, output, timesMost] of [
    ['numbers and lines', df, 1],
    ['everything', noise, 2],
  ] as const) {
    test(`comes to its end though ${what} of its outputs differ each time`, async (t) => {
      const stored: Turn[] = [];
      const notes = keptNotes();
      let heard = 0;
      for (let life = 1; ; life++) {
        assert.ok(life <= 2 * turnsOfAgent, 'it goes no further');
        const { last, capture, asked } = await live(t, stored, (step) => output(life, step), {
          diesAfter: heard + 1,
          notes,
        });
        heard = Math.max(heard, capture.turns.length);
        if (last === null) continue;
        assert.match(last, /^Done/);
        const [row, ...others] = trajectoryRows(capture.turns, 'interleaved');
        assert.deepEqual(others, []);
        assert.equal(
          row!.lossMask.filter((mask) => mask === 1).length,
          capture.turns.flatMap(({ tokenIds }) => tokenIds).length,
        );
        assert.ok(asked <= timesMost, `${asked} turns of the last life were sampled`);
        if (timesMost === 1) assert.deepEqual(capture.mapped(), { disk: turnsOfAgent - 2 });
        break;
      }
      assert.ok(stored.length <= timesMost * turnsOfAgent, `${stored.length} turns were sampled`);
      assert.equal(new Set(stored.map(({ call }) => call!.id)).size, stored.length);
    });
  }

  test('the model sees the recorded outputs, and from the first new turn on those of this life', async (t) => {
    const stored: Turn[] = [];
    await live(t, stored, (step) => df(1, step), { diesAfter: 3 });
    const { capture, last } = await live(t, stored, (step) => df(2, step));
    const outputs = capture.turns.flatMap(({ heard = [] }) => heard.slice(-1).map(({ content }) => content));
    assert.deepEqual(outputs.slice(1), [df(1, 0), df(1, 1), df(2, 2), df(2, 3), df(2, 4)]);
    assert.equal(last, `Done, last seen: ${/Available (\d+)/.exec(df(2, 4))![1]}.`);
    assert.deepEqual([capture.setAside(), capture.mapped()], [null, { disk: 2 }]);
  });

  test('what fails in this life and did not before is another call: the rest of the branch is set aside', async (t) => {
    const stored: Turn[] = [];
    await live(t, stored, (step) => df(1, step), { diesAfter: 4 });
    const fails = (step: number): string => (step === 1 ? 'df: no such command' : df(2, step));
    const { capture, asked } = await live(t, stored, fails);
    assert.deepEqual([asked, capture.calls.recalled, capture.mapped()], [turnsOfAgent - 2, 2, { disk: 1 }]);
    assert.equal(capture.setAside()!.turns.length, 2);
  });

  test('two outputs that one attempt got for the same call are no sign that they differ each time', async (t) => {
    const stored: Turn[] = [];
    const notes = keptNotes();
    /** Asks with each of the outputs of its first call: two branches of one conversation. */
    const fork = async (...outputs: string[]): Promise<Capture> => {
      const script = { says, recorded: [...stored], onTurn: (turn: Turn) => void stored.push(turn) };
      const { capture, url } = await open(t, script, { notes });
      const first = { role: 'user', content: 'Look at the disk.' };
      const ask = async (messages: object[]) => {
        const { body } = await post(`${url}/v1/chat/completions`, capture, {
          model: 'policy',
          messages,
          tools: [tool],
        });
        return (body['choices'] as [{ message: { tool_calls: [{ id: string }] } }])[0].message;
      };
      const said = await ask([first]);
      const id = said.tool_calls[0].id;
      for (const content of outputs) await ask([first, said, { role: 'tool', tool_call_id: id, content }]);
      await capture.close();
      return capture;
    };
    await fork('a list of files', 'no network here');
    const second = await fork('permission was denied');
    assert.deepEqual([second.calls.sampled, second.mapped()], [1, {}], 'it is another call');
    const third = await fork('something else entirely');
    assert.deepEqual([third.calls.sampled, third.mapped()], [0, { disk: 1 }], 'two attempts got different ones');
  });

  test('only outputs of the same call may differ: what a program says itself may not', async (t) => {
    const stored: Turn[] = [];
    const ask = async (content: string): Promise<Capture> => {
      const script = { says, recorded: [...stored], onTurn: (turn: Turn) => void stored.push(turn) };
      const { capture, url } = await open(t, script);
      await post(`${url}/v1/chat/completions`, capture, { model: 'policy', messages: [{ role: 'user', content }] });
      return capture;
    };
    await ask('Summarize the first chapter of 12.');
    const { calls } = await ask('Summarize the first chapter of 13.');
    assert.deepEqual([calls.sampled, calls.recalled], [1, 0]);
  });
});

describe('outputs that are alike', () => {
  for (const [was, is, expected] of [
    ['/dev/vda 100 20 80 20%', '/dev/vda 100 21 79 21%', true],
    ['root 12 sshd\nroot 13 bash', 'root 99 sshd\nroot 14 bash\nroot 15 df', true],
    ['17', '4', true],
    ['', 'x', false],
    ['', '', false],
    ['make: Entering directory\ndone in time', 'make: *** No rule to make target', false],
    ['No such file', 'Permission denied', false],
  ] as const) {
    test(`${JSON.stringify(was)} and ${JSON.stringify(is)}: ${expected}`, () =>
      assert.equal(isAlike(was, is), expected));
  }
});
