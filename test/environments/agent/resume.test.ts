/** A program that goes on in a snapshot of its sandbox after a death, and where it does not. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test, type TestContext } from 'node:test';
import { openAgent } from '../../../backends/environments/agent/agent-environment.ts';
import { ProgramSnapshots } from '../../../backends/environments/agent/program-snapshots.ts';
import type { Sandbox } from '../../../backends/sandboxes/types.ts';
import type { RolloutPlace } from '../../../backends/environments/types.ts';
import { temporaryFolder } from '../../../backends/testing/material.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { NotesLog } from '../../../runs/rollouts/notes.ts';
import { FileStore } from '../../../store/file-store.ts';
import { canSandbox, missingSandbox } from '../sandbox-here.ts';
import { keptNotes } from './open-capture.ts';
import { agent, agentOf, programThatResumes, turns } from './resuming-program.ts';
import { scriptedPolicy } from './scripted-policy.ts';

const skip = (await canSandbox()) ? false : missingSandbox;
describe('a program that goes on in a snapshot', { skip }, () => {
  test('killed before its newest snapshot is stored, goes on in the one before and gets the finished turn from the store', async (t) => {
    const { play, stored } = await inProcess(t, await programThatResumes(2));
    // A snapshot comes with turns 3 and 5: in turn 4 that of turns 1 and 2 is the newest.
    await assert.rejects(play({ diesIn: 4 }));
    assert.equal(stored.length, 3);
    const record = await play();
    assert.deepEqual([record.error, record.outcome], [undefined, 'ok']);
    const { calls, turns: times, files } = record.program!;
    assert.deepEqual([calls.kept, calls.recalled, calls.sampled, files!['resumed']], [2, 1, 2, '1']);
    assert.equal(times!.recalled, '0-2');
    assert.equal(new Set(stored.map(({ call }) => call!.id)).size, 5);
  });

  test('that says something else after the snapshot has the rest set aside by name', async (t) => {
    const { play, stored } = await inProcess(t, await programThatResumes(3, { agent: agentOf(7) }));
    // The snapshot has three turns. Turn 4 comes again, and the line that follows it is another one then.
    await assert.rejects(play({ diesIn: 6 }));
    assert.equal(stored.length, 5);
    const record = await play();
    assert.equal(record.outcome, 'ok', record.error);
    assert.deepEqual([record.program!.calls.kept, record.program!.calls.recalled], [3, 1]);
    assert.equal(record.program!.setAside!.turns, 1);
    assert.equal(record.turns.length, 7);
  });

  test('that failed by itself begins at the start, and not where it would fail again', async (t) => {
    const failing = agent.replace('open("answer"', 'sys.exit(3) if not os.environ.get("NO") else open("answer"');
    const { play } = await inProcess(t, await programThatResumes(1, { agent: failing }));
    const record = await play();
    assert.match(record.error!, /^ProgramFailed: the program ended with exit code 3/);
    assert.ok(record.program!.snapshots!.taken > 0);
    const again = await play();
    assert.equal(again.program!.calls.kept, undefined);
    assert.match(again.error!, /exit code 3/);
  });

  test('that writes its record after its call finds it there, once the snapshot waits for it', async (t) => {
    const late = agent
      .replace(
        'import random\n',
        'import random, threading\ndef save(state):\n    open("state.new", "w").write(state)\n    os.replace("state.new", "state.json")\n',
      ) // prettier-ignore
      .replace(
        /    json\.dump\(.*\n.*\n/,
        '    late = threading.Timer(0.2, save, [json.dumps(state)])\n    late.start()\n',
      );
    const { play, stored } = await inProcess(t, await programThatResumes(1, { agent: late }, 1));
    await assert.rejects(play({ diesIn: 3 }));
    const record = await play();
    assert.deepEqual([record.error, record.outcome], [undefined, 'ok']);
    const { calls, files } = record.program!;
    assert.deepEqual([calls.kept, calls.recalled, files!['resumed']], [1, 1, '1']);
    assert.equal(stored.length, turns);
  });

  test('whose program alone was killed goes on in the snapshot', async (t) => {
    const dying = agent.replace('    json.dump(', '    if len(state["messages"]) == 7 and not state["resumed"]: os.kill(os.getpid(), 9)\n    json.dump('); // prettier-ignore
    const { play, stored } = await inProcess(t, await programThatResumes(1, { agent: dying }));
    const first = await play();
    assert.match(first.error!, /was ended by SIGKILL/);
    const record = await play();
    assert.equal(record.outcome, 'ok', record.error);
    assert.deepEqual([record.program!.calls.kept, record.program!.calls.recalled], [2, 1]);
    assert.equal(stored.length, turns);
  });

  test('takes no snapshot while it makes several calls at once, and none where nothing outlives the process', async (t) => {
    const parallel = `
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    list(pool.map(ask, ["a", "b", "c", "d"]))
open("answer", "w").write("2")
open("resumed", "w").write("0")
`;
    const program = await programThatResumes(1, { agent: parallel });
    const { play } = await inProcess(t, program);
    const record = await play({ together: 4 });
    assert.deepEqual([record.error, record.outcome, record.program!.snapshots], [undefined, 'ok', { taken: 0 }]);
    const environment = await openAgent({ id: 'mine', program, given: {} });
    const alone = await environment.rollout(environment.dataset.at(0), scriptedPolicy({ says: () => '2' }));
    assert.equal(alone.program!.snapshots, undefined);
  });
});

describe('a program of two threads', { skip }, () => {
  test('is saved at no moment at which the other thread makes an effect', async (t) => {
    const threads = `
import threading
begun, go = threading.Event(), threading.Event()
def post(path, body):
    request = urllib.request.Request(os.environ["RATCHET_URL"] + "/effects/send" + path, json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    urllib.request.urlopen(request).read()
def send():
    post("", {"kind": "once", "arguments": {}})
    begun.set()
    go.wait()
    post("/settle", {"answer": 1})
ask("a")
sending = threading.Thread(target=send)
sending.start()
begun.wait()
ask("b")
ask("c")
go.set()
sending.join()
ask("d")
open("answer", "w").write("2")
open("resumed", "w").write("0")
`;
    const { play } = await inProcess(t, await programThatResumes(1, { agent: threads }));
    const { outcome, error, program } = await play();
    assert.equal(outcome, 'ok', error);
    assert.deepEqual(program!.snapshots, { taken: 1, putOff: { calls: 0, effects: 2 } });
  });

  for (const [what, meanwhile, kept] of [
    ['nothing else', 0, 1],
    ['a request of the other thread', 1, 0],
  ] as const) {
    test(`a snapshot is kept where ${what} came while it was taken: ${kept}`, async () => {
      const saved = new Set<string>();
      const snapshots = await ProgramSnapshots.open({
        program: { ...(await programThatResumes(1)), resume: { command: ['agent'], every: 1, delayS: 0 } },
        notes: keptNotes(),
        sandboxes: {
          snapshotPrefix: '',
          removeSnapshots: (key) => Promise.resolve(void saved.delete(key)),
          take: () => Promise.reject(new Error('not asked for')),
        },
        earlier: new Set(),
        signal: new AbortController().signal,
      });
      let requests = 1;
      const sandbox = {
        snapshot: ({ key }: { readonly key: string }) => {
          requests += meanwhile; // begun and ended: nothing is under way when the snapshot is done
          saved.add(key);
          return Promise.resolve({ key, sizeBytes: 1, sha256: '' });
        },
      } as unknown as Sandbox;
      const capture = {
        heard: () => ({ calls: ['first'], names: [] }),
        underWay: () => ({ requests, open: 1, effects: 0 }),
      };
      snapshots.begin({ sandbox, capture });
      await snapshots.beside();
      assert.equal(saved.size, kept);
      assert.equal(snapshots.report().snapshots!.taken, kept);
    });
  }
});

/** Attempts at one rollout in this process; a death is the end of the attempt's signal while a turn is sampled. */
async function inProcess(t: TestContext, program: AgentProgram) {
  const store = new FileStore(await temporaryFolder(t));
  const prefix = 'rollouts/step_1/groups_1-2/chunk_1_of_1/notes_';
  const stored: Turn[] = [];
  /** `together` = calls that are answered when so many have come. */
  async function play({ diesIn = Infinity, together = 1 } = {}) {
    const all = new AbortController();
    let come = 0;
    const death = new AbortController();
    const { signal } = death;
    const log = await NotesLog.open(store, prefix, { signal, before: () => Promise.resolve() });
    const policy = scriptedPolicy({
      signal,
      recorded: [...stored],
      says: async (prompt) => {
        const turn = prompt.split('<|im_start|>assistant').length - 1;
        come += 1;
        if (come >= together) all.abort();
        if (!all.signal.aborted) await once(all.signal, 'abort');
        if (turn !== diesIn) return `Step ${turn}.`;
        death.abort(new Error('the worker died'));
        return new Promise(() => undefined);
      },
      onTurn: (turn) => void stored.push(turn),
    });
    const environment = await openAgent({ id: 'mine', program, given: {} });
    const place: RolloutPlace = { group: 'g', index: 0, size: 1, dataset: 'dataset', signal, notes: log.of({ group: 1, index: 0 }) }; // prettier-ignore
    return environment.rollout(environment.dataset.at(0), policy, place);
  }
  return { play, stored };
}
