/** The protocol between Node and the PyTorch trainer, without PyTorch. `npm run test:engines` tries the trainer itself. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { rowsOf } from '../../core/rl/learning/batch.ts';
import { cutByRows, policyColumns, writeColumns } from '../../backends/torch/columns.ts';
import { unpackFolder } from '../../backends/torch/packed-folder.ts';
import { TorchTrainer } from '../../backends/trainer/torch.ts';
import { decodeSafetensors } from '../../engine/index.ts';
import { packed } from './packed-state.ts';

const pythonFolder = fileURLToPath(new URL('../../python', import.meta.url));
const skip = newPython() ? false : 'no Python 3.11 here';

function newPython(): boolean {
  try {
    execFileSync('python3', ['-P', '-c', '']);
    return true;
  } catch {
    return false;
  }
}

async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-torch-test-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

test('a Python without the packages is refused in a line that names them', { skip }, async (t) => {
  const bare = path.join(await folderOf(t), 'python');
  await writeFile(bare, '#!/bin/sh\nexec python3 -S "$@"\n'); // without its site-packages
  await chmod(bare, 0o755);
  const trainer = new TorchTrainer({ python: bare, ranks: 1, threads: 1 });
  t.after(() => trainer.close());
  await assert.rejects(trainer.open('/nowhere', { lora: null, seed: 1 }), (error: Error & { code: string }) => {
    assert.equal(error.code, 'ServerUnavailable');
    assert.match(error.message, /lacks torch, transformers, peft, safetensors: .* -m pip install torch/);
    assert.doesNotMatch(error.message, /\n/);
    return true;
  });
});

test('a rank computes on CUDA, else alone on a Mac’s GPU, else on the CPU', { skip }, () => {
  const program = `
from ratchet_torch.devices import device_for, refusal_for
assert device_for(None, 2, True, False) == "cuda"
assert device_for(None, 1, False, True) == "mps"
assert device_for(None, 2, False, True) == "cpu", "ranks cannot share it"
assert device_for(None, 1, False, False) == "cpu"
assert device_for("cpu", 1, True, True) == "cpu"
assert "trainer.dtype" in refusal_for("mps", {"dtype": "bfloat16"})
assert refusal_for("mps", {}) is None and refusal_for("cuda", {"dtype": "bfloat16"}) is None
`;
  execFileSync('python3', ['-P', '-c', program], { env: { ...process.env, PYTHONPATH: pythonFolder } });
});

test('FSDP holds the weights unless a rank of float32 is alone on a CPU, or on a Mac’s GPU', { skip }, () => {
  const program = `
from ratchet_torch.devices import shares_weights
assert not shares_weights("cpu", 1, {}) and not shares_weights("cpu", 1, {"dtype": "float32"})
assert shares_weights("cpu", 2, {})
assert shares_weights("cpu", 1, {"dtype": "bfloat16"}) and shares_weights("cpu", 1, {"optimization_dtype": "bfloat16"})
assert shares_weights("cpu", 1, {"load_in_4bit": True})
assert shares_weights("cuda", 1, {})
assert not shares_weights("mps", 1, {})
`;
  execFileSync('python3', ['-P', '-c', program], { env: { ...process.env, PYTHONPATH: pythonFolder } });
});

test('a Python that is not there is named', async (t) => {
  const trainer = new TorchTrainer({ python: '/nowhere/python', ranks: 1, threads: 1 });
  t.after(() => trainer.close());
  await assert.rejects(trainer.open('/nowhere', { lora: null, seed: 1 }), {
    code: 'ServerUnavailable',
    message: /^\/nowhere\/python cannot be started: /,
  });
});

test(
  'a line that is too long, or is no request, ends a rank, and figures that are no numbers travel as text',
  { skip },
  () => {
    const program = `
import socket
from ratchet_torch.wire import Wire, line_bytes_max, numbers
def after(data):
    ours, theirs = socket.socketpair()
    import threading
    threading.Thread(target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR))).start()
    try:
        return repr(Wire(theirs).receive())
    except ValueError as error:
        return str(error)[:40]
print(after(b'{"id":1,"op":"digest"}\\n'))
print(after(b''))
print(after(b'{"id":1,"op"'))
print(after(b'x' * (line_bytes_max + 2)))
print(after(b'[1]\\n'))
print(numbers({"a": 1.5, "b": float("nan"), "c": float("-inf")}))
`;
    const said = execFileSync('python3', ['-S', '-P', '-c', program], {
      env: { ...process.env, PYTHONPATH: pythonFolder },
    });
    assert.deepEqual(said.toString().trim().split('\n'), [
      "{'id': 1, 'op': 'digest'}",
      'None',
      'None',
      'A request has more than 4194304 bytes. L',
      'A request needs a number as id and a tex',
      "{'a': 1.5, 'b': 'nan', 'c': '-inf'}",
    ]);
  },
);

test('a batch goes by files of columns with their digests, one value a token', async (t) => {
  const folder = await folderOf(t);
  const rows = [
    { tokenIds: [5, 6, 7], lossMask: [0, 1, 1], behaviorLogprobs: [0, -1, -2], advantages: [0, 2, 2] },
    {
      tokenIds: [8, 9],
      lossMask: [0, 1],
      behaviorLogprobs: [0, -3],
      advantages: [0, -1],
      sampledLogprobs: [0, -4],
      temperature: 0.5,
      rollout: { index: 4, of: 9 },
    },
  ];
  const columns = policyColumns({ type: 'grpo', clipHigh: 1.2, aggregation: 'token', advantageTau: 0.5 }, undefined, {
    hasObserved: false,
  });
  const parts = await writeColumns(folder, rowsOf(rows), columns);
  assert.equal(parts.length, 1);
  const bytes = await readFile(parts[0]!.path);
  assert.equal(createHash('sha256').update(bytes).digest('hex'), parts[0]!.sha256);
  const { tensors } = decodeSafetensors(bytes, 'columns');
  const found = Object.fromEntries([...tensors].map(([name, { data }]) => [name, [...data]]));
  assert.deepEqual(found, {
    tokens: [5, 6, 7, 8, 9],
    mask: [0, 1, 1, 0, 1],
    behavior: [0, -1, -2, 0, -3],
    sampled: [0, -1, -2, 0, -4],
    advantages: [0, 1, 1, 0, -0.5],
    'row.length': [3, 2],
    'row.distilled': [0, 0],
    'row.rollout': [-1, 4],
    'row.rollouts': [-1, 9],
    'row.temperature': [Number.NaN, 0.5],
  });
  assert.deepEqual(
    cutByRows(Float32Array.of(1, 2, 3, 4, 5), [{ tokens: 3 }, { tokens: 2 }]).map((row) => [...row]),
    [
      [1, 2, 3],
      [4, 5],
    ],
  );
  const short = [{ ...rows[0]!, advantages: [0, 2] }];
  await assert.rejects(writeColumns(folder, rowsOf(short), columns), {
    code: 'Unsupported',
    message: /expected 3 values of advantages in row 0, one per token, got 2/,
  });
});

test('a state that was packed into one object comes back as it was, and bytes of anything else are refused', async (t) => {
  const to = await folderOf(t);
  const shard = { name: '__0_0.distcp', content: Buffer.alloc(1000, 7) };
  const whole = packed([{ name: '.metadata', content: Buffer.from('list') }, shard]);
  await unpackFolder(whole, to);
  assert.deepEqual((await readdir(to)).sort(), ['.metadata', '__0_0.distcp']);
  assert.deepEqual(await readFile(path.join(to, '__0_0.distcp')), shard.content);
  for (const bytes of [
    whole.subarray(0, -1),
    whole.subarray(0, 4),
    Buffer.alloc(64, 255),
    packed([{ name: '../x', content: Buffer.alloc(0) }]),
  ])
    await assert.rejects(unpackFolder(bytes, to), { code: 'CheckpointDamaged' });
});
