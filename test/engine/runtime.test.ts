import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { members } from '../../engine/onnx/c-api.ts';
import { Graph } from '../../engine/onnx/graph.ts';
import { exponential, linear, multiply } from '../../engine/onnx/operators.ts';
import { Tensor } from '../../engine/onnx/runtime.ts';
import { floats, isBusy, longs, openSession } from '../../engine/onnx/session.ts';

function doubling(): Graph {
  const graph = new Graph();
  const x = graph.input('x', 'float32', ['n']);
  graph.output('twice', multiply(x, 2));
  graph.output('exponential', exponential(x));
  return graph;
}

/** V8's collector, asked for while the process runs: contexts made after the flag have it. */
function collector(): () => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc') as () => void;
}

test('a run writes into the tensor it is given, which may be its own input', async () => {
  const session = await openSession(doubling(), { threads: 1 });
  const x = floats(Float32Array.of(1, 2, 3), [3]);
  const output = await session.run({ x }, { twice: x });
  await session.release();
  assert.equal(output['twice'], x);
  assert.deepEqual([...x.data], [2, 4, 6]);
  assert.deepEqual(Object.keys(output), ['twice']);
});

test('outputs that no tensor was given for come in new ones, of no elements too', async () => {
  const session = await openSession(doubling(), { threads: 1 });
  const output = await session.run({ x: floats(new Float32Array(0), [0]) });
  const other = await session.run({ x: floats(Float32Array.of(0), [1]) }, { exponential: null });
  await session.release();
  assert.deepEqual(output['twice']!.dims, [0]);
  assert.deepEqual([...other['exponential']!.data], [1]);
});

test('what the runtime refuses is an error with its words', async () => {
  const session = await openSession(doubling(), { threads: 1 });
  await assert.rejects(session.run({}), /Missing Input: x|'x'|x/);
  await assert.rejects(session.run({ x: longs(BigInt64Array.of(1n), [1]) }), /Unexpected input data type/);
  await assert.rejects(session.run({ x: floats(Float32Array.of(1), [1]) }, { nothing: null }), /nothing/);
  await session.release();
  await assert.rejects(session.run({ x: floats(Float32Array.of(1), [1]) }), /the session is open/);
});

test('a tensor of the wrong size or array is refused where it is made', () => {
  assert.throws(() => floats(new Float32Array(5), [2, 3]), /has 6 elements, not 5/);
  assert.throws(() => new Tensor('float32', new Int32Array(1), [1]), /held by a Float32Array/);
});

test('the event loop continues while a graph is computed', async () => {
  const graph = new Graph();
  const x = graph.input('x', 'float32', ['n', 'n']);
  const product = (a: typeof x): typeof x => graph.node('MatMul', [a, x], { shape: ['n', 'n'] });
  graph.output('y', product(product(product(x))));
  const session = await openSession(graph, { threads: 1 });
  const n = 1024;
  let turns = 0;
  const counting = setInterval(() => turns++);
  await session.run({ x: floats(new Float32Array(n * n), [n, n]) });
  clearInterval(counting);
  await session.release();
  assert.ok(turns > 0, 'a timer fired meanwhile');
});

test('runs at the same time, with garbage collected between, keep to their own memory', async () => {
  const sessions = await Promise.all([1, 2, 3].map(() => openSession(doubling(), { threads: 1 })));
  const check = async (round: number): Promise<void> => {
    const values = Float32Array.from({ length: 1 + (round % 7) }, (_, i) => round + i);
    const { twice } = await sessions[round % 3]!.run({ x: floats(values, [values.length]) }, { twice: null });
    assert.deepEqual(
      [...twice!.data],
      [...values].map((value) => 2 * value),
    );
  };
  const collect = collector();
  const dropped: WeakRef<object>[] = [];
  for (let round = 0; round < 3000; round += 30) {
    await Promise.all(Array.from({ length: 30 }, (_, i) => check(round + i)));
    dropped.push(new WeakRef({ round }));
    await nextTurn(); // a WeakRef keeps what it was made of until then
    collect();
  }
  assert.ok(
    dropped.some((one) => one.deref() === undefined),
    'garbage was collected meanwhile',
  );
  for (const session of sessions) await session.release();
});

test('inputs handed over as constants give what the same inputs give when they are fed', async () => {
  const graph = new Graph();
  const x = graph.input('x', 'float32', ['n', 3]);
  const w = graph.input('w', 'float32', [2, 3]);
  graph.output('y', linear(x, w));
  const weights = { w: floats(Float32Array.of(1, 2, 3, 4, 5, 6), [2, 3]) };
  const feeds = { x: floats(Float32Array.of(1, 0, -1, 2, 2, 2), [2, 3]), ...weights };
  const outputs = [];
  for (const constants of [{ tensors: {} }, { tensors: weights }, { tensors: weights, stay: true }]) {
    const session = await openSession(graph, { threads: 1 }, constants);
    outputs.push([...(await session.run(feeds))['y']!.data]);
    await session.release();
  }
  assert.deepEqual(
    outputs,
    Array.from({ length: 3 }, () => [-2, -2, 12, 30]),
  );
  const open = openSession(graph, { threads: 1 }, { tensors: { x: feeds.x } });
  await assert.rejects(open, /x is a constant: its sizes are fixed, and n is not/);
});

test('constants that stay are not copied when a session is opened', { skip: !canResetPeak() }, async () => {
  const [rows, columns] = [2048, 4096];
  const graph = new Graph();
  const x = graph.input('x', 'float32', ['n', columns]);
  const w = graph.input('w', 'float32', [rows, columns]);
  graph.output('y', linear(x, w));
  const tensors = { w: floats(new Float32Array(rows * columns).fill(1), [rows, columns]) };
  const peakMb = (): number => Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1]) / 1024;
  const growth = async (stay: boolean): Promise<number> => {
    resetPeak();
    const before = peakMb();
    const session = await openSession(graph, { threads: 1 }, { tensors, stay });
    const grown = peakMb() - before;
    await session.release();
    return grown;
  };
  const matrixMb = (4 * rows * columns) / 2 ** 20;
  const [copied, borrowed] = [await growth(false), await growth(true)];
  assert.ok(borrowed < copied - 0.5 * matrixMb, `${borrowed} MB grown, and ${copied} MB with a copy of ${matrixMb} MB`);
});

test('processors are busy when more than half of them had work', () => {
  assert.equal(isBusy(0, 2), false, 'where the system tells no load');
  assert.equal(isBusy(1, 2), false);
  assert.equal(isBusy(1.2, 2), true);
  assert.equal(isBusy(7, 16), false);
});

test('the members of the C API are called at the places that its header gives them', () => {
  const file = new URL('../data/onnxruntime/ort-api.json', import.meta.url);
  const header = JSON.parse(readFileSync(file, 'utf8')) as { members: string[] };
  for (const [member, [name, place]] of Object.entries(members)) assert.equal(header.members[place], name, member);
});

/** The peak memory of this process starts again at what is resident. */
function resetPeak(): void {
  writeFileSync('/proc/self/clear_refs', '5');
}

/** Linux can, unless its kernel was built without. */
function canResetPeak(): boolean {
  try {
    resetPeak();
    return true;
  } catch {
    return false;
  }
}
