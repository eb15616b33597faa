import {
  appendFileSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { passGap } from './faults.ts';
import { installation } from './installation.mjs';
import { type ReadMicroBatch, readMicroBatches } from './micro-batches.ts';
import { StandInModel } from './model.ts';
import { loraOf, optionsOf, readSettings } from './settings.ts';

/**
 * A rank of prime-rl's trainer that speaks its files in its order, and fails as it fails (measured with the real one): it looks at no batch before it trains, waits
 * for ever for what does not come, keeps markers that are there, and takes half a checkpoint for a whole one. Arguments: settings file, rank, ranks.
 */

const pollMs = 10;
const [file, rankText, ranksText] = process.argv.slice(2);
const [rank, ranks] = [Number(rankText), Number(ranksText)];
const settings = readSettings(file!);
const out = settings.output_dir;
const place = (...names: string[]): string => path.join(out, ...names);
const stepFolder = (kind: string, step: number): string => place(kind, `step_${step}`);
const fields = installation.structs.MicroBatch;

await main();

async function main(): Promise<void> {
  const from = resumeStep();
  if (rank > 0) return follow(from);
  const lora = loraOf(settings);
  const seed = Number(process.env['RATCHET_PRIME_RL_SEED']);
  const model =
    from === 0
      ? await StandInModel.open(settings.model.name, lora, seed)
      : await StandInModel.resume(settings.model.name, checkpointOf(from), lora, seed);
  await broadcast(model, from);
  for (let step = from + 1; ; step++) {
    await train(model, step);
    if (step === settings.max_steps) break;
  }
  await save(model, settings.max_steps);
}

function resumeStep(): number {
  if (!settings.resume) return 0;
  if (settings.resume.step !== undefined) return settings.resume.step;
  const names = existsSync(place('checkpoints')) ? readdirSync(place('checkpoints')) : [];
  return Math.max(0, ...names.map((name) => Number(name.split('_').at(-1))));
}

/** Its metadata come last, and it does not look whether they are there before it needs them. */
function checkpointOf(step: number): string {
  const folder = path.join(stepFolder('checkpoints', step), 'trainer');
  if (!existsSync(folder)) throw new Error(`FileNotFoundError: Checkpoint not found at ${folder}`);
  if (!existsSync(path.join(folder, '.metadata'))) throw new Error('AssertionError: metadata is None');
  return folder;
}

async function train(model: StandInModel, step: number): Promise<void> {
  const own = await readOwn(step);
  await passGap(step, 'read');
  const others = await othersOf(step, own.length);
  const batches = [...own, ...others];
  const foreign = batches.flatMap(({ input_ids }) => input_ids).find((id) => id >= model.vocabulary);
  if (foreign !== undefined) throw new Error(`IndexError: index ${foreign} is out of range`);
  await passGap(step, 'backward');
  const told = optionsOf(settings, stepFolder('rollouts', step));
  const figures = await model.step(batches, told);
  await passGap(step, 'optimizer');
  await broadcast(model, step);
  if ((step - 2) % settings.ckpt.interval !== 0)
    rmSync(stepFolder('broadcasts', step - 2), { recursive: true, force: true });
  if (step % settings.ckpt.interval === 0 && step !== settings.max_steps) await save(model, step);
  report(step, told.learningRate, figures, batches.length);
  writeFileSync(syncFile(step, 'done'), '');
  await passGap(step, 'metrics');
}

async function broadcast(model: StandInModel, step: number): Promise<void> {
  const folder = stepFolder('broadcasts', step);
  await model.broadcast(folder);
  await passGap(step, 'weights');
  closeSync(openSync(path.join(folder, 'STABLE'), 'a')); // touched: one that is there stays as it is
  await passGap(step, 'marker');
}

async function save(model: StandInModel, step: number): Promise<void> {
  const folder = path.join(stepFolder('checkpoints', step), 'trainer');
  await model.save(folder);
  for (let other = 1; other < ranks; other++) writeFileSync(path.join(folder, `__${other}_0.distcp`), `rank ${other}`);
  await passGap(step, 'shards');
  writeFileSync(path.join(folder, '.metadata.tmp'), JSON.stringify({ step }));
  renameSync(path.join(folder, '.metadata.tmp'), path.join(folder, '.metadata'));
  await passGap(step, 'checkpoint');
}

/** Five rows; what is not finite is left out. STAND_IN_RATE has it tell another rate than the one that it used. The loss is the mean over micro-batches of parts that add up to the batch's. */
function report(step: number, rate: number, figures: Readonly<Record<string, number>>, microBatches: number): void {
  const rows: Record<string, number | undefined>[] = [
    { 'perf/throughput': 1 },
    { 'optim/lr': rate * Number(process.env['STAND_IN_RATE'] ?? 1), 'optim/grad_norm': figures['grad_norm'] },
    {
      'loss/mean': figures['loss']! / microBatches,
      'entropy/all/mean': figures['entropy'],
      'mismatch_kl/all/mean': figures['mismatch_kl'],
      'is_masked/mean': figures['clip_fraction'],
    },
    { 'time/step': 0.1 },
    { 'disk/free': 1 },
  ];
  for (const row of rows) {
    const finite = Object.entries(row).filter(([, value]) => Number.isFinite(value));
    appendFileSync(place('metrics.jsonl'), `${JSON.stringify({ step, time: 0, ...Object.fromEntries(finite) })}\n`);
  }
}

async function readOwn(step: number): Promise<ReadMicroBatch[]> {
  const at = path.join(stepFolder('rollouts', step), `rank_${rank}.bin`);
  while (!existsSync(at)) await delay(pollMs);
  const read = readMicroBatches(readFileSync(at), fields);
  for (const { input_ids, sequence_lengths, seq_lens } of read)
    for (const lengths of [sequence_lengths, seq_lens])
      if (lengths.reduce((sum, length) => sum + length, 0) !== input_ids.length) throw new Error('ValueError: lengths do not add up'); // prettier-ignore
  return read;
}

/** Collectives: a rank that has another number of micro-batches is waited for until the time is over. */
async function othersOf(step: number, count: number): Promise<ReadMicroBatch[]> {
  const found: ReadMicroBatch[] = [];
  const deadline = performance.now() + settings.dist_timeout_seconds * 1000;
  for (let other = 1; other < ranks; other++) {
    const told = (): string | null =>
      existsSync(syncFile(step, other)) ? readFileSync(syncFile(step, other), 'utf8') : null;
    while (Number(told() ?? Number.NaN) !== count) {
      if (performance.now() > deadline) throw new Error('DistBackendError: timeout');
      await delay(pollMs);
    }
    found.push(...readMicroBatches(readFileSync(path.join(stepFolder('rollouts', step), `rank_${other}.bin`)), fields));
  }
  return found;
}

async function follow(from: number): Promise<void> {
  for (let step = from + 1; ; step++) {
    const own = await readOwn(step);
    const partial = `${syncFile(step, rank)}.partial`;
    writeFileSync(partial, String(own.length));
    renameSync(partial, syncFile(step, rank));
    while (!existsSync(syncFile(step, 'done'))) await delay(pollMs);
    if (step === settings.max_steps) return;
  }
}

function syncFile(step: number, who: number | 'done'): string {
  mkdirSync(place('sync'), { recursive: true });
  return place('sync', `step_${step}-${who}`);
}
