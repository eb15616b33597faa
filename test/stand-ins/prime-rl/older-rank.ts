import {
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
import { readTrainingBatch, type ReadMicroBatch } from './micro-batches.ts';
import { StandInModel } from './model.ts';
import { loraOf, optionsOf, readSettings } from './settings.ts';

/**
 * A rank of v0.4.0: it counts batches from 0, packs samples itself, and goes on at the batch of the highest folder in run_default/checkpoints, whatever checkpoint it
 * loads. It says what a step gave in its log alone, retries a torn batch and a missing orch.toml for ever, and removes what is in `rollouts` when it starts.
 */
const pollMs = 10;
const [file, rankText, ranksText] = process.argv.slice(2);
const settings = readSettings(file!);
const place = (...names: string[]): string => path.join(settings.output_dir, ...names);
const run = (...names: string[]): string => place('run_default', ...names);

if (Number(rankText) === 0) await main();
else while (!existsSync(place('sync', 'end'))) await delay(pollMs);

async function main(): Promise<void> {
  const from = settings.ckpt.resume_step ?? 0;
  const seed = Number(process.env['RATCHET_PRIME_RL_SEED']);
  const { name } = settings.model;
  const lora = loraOf(settings);
  const model =
    from === 0
      ? await StandInModel.open(name, lora, seed)
      : await StandInModel.resume(name, checkpointOf(from), lora, seed);
  rmSync(place('rollouts'), { recursive: true, force: true });
  while (!existsSync(run('control', 'orch.toml'))) await delay(pollMs);
  const kept = existsSync(run('checkpoints')) ? readdirSync(run('checkpoints')) : [];
  let packed = Math.max(0, ...kept.map((each) => Number(each.split('_').at(-1))));
  process.stdout.write('INFO Starting training loop\n');
  for (let step = from; ; step++) {
    if (step > from) await broadcast(model, step);
    const isLast = step === settings.max_steps;
    if (step > from && !isLast && step % settings.ckpt.interval === 0) await save(model, step);
    if (isLast) break;
    await train(model, step, await batchOf(packed++));
  }
  await save(model, settings.max_steps);
  mkdirSync(place('sync'), { recursive: true });
  writeFileSync(place('sync', 'end'), '');
}

function checkpointOf(step: number): string {
  const folder = place('checkpoints', `step_${step}`, 'trainer');
  if (!existsSync(path.join(folder, '.metadata'))) throw new Error('AssertionError: metadata is None');
  return folder;
}

async function batchOf(number: number): Promise<{ readonly folder: string; readonly samples: ReadMicroBatch[] }> {
  const folder = run('rollouts', `step_${number}`);
  for (;;) {
    await delay(pollMs);
    if (!existsSync(path.join(folder, 'rollouts.bin'))) continue;
    try {
      return { folder, samples: readTrainingBatch(readFileSync(path.join(folder, 'rollouts.bin'))) };
    } catch (error) {
      process.stdout.write(`ERROR ${String(error)}\n`);
    }
  }
}

async function train(
  model: StandInModel,
  step: number,
  { folder, samples }: Awaited<ReturnType<typeof batchOf>>,
): Promise<void> {
  await passGap(step + 1, 'read');
  if (samples.some(({ input_ids }) => input_ids.some((id) => id >= model.vocabulary))) throw new Error('IndexError');
  await passGap(step + 1, 'backward');
  const told = optionsOf(settings, folder);
  const { loss, entropy, mismatch_kl: mismatch, grad_norm: norm } = await model.step(samples, told);
  await passGap(step + 1, 'optimizer');
  const shown = loss! / microBatchesOf(samples);
  const [four, rate] = [(value = Number.NaN) => value.toFixed(4), told.learningRate.toExponential(2)];
  // loguru colours what it says.
  process.stdout.write(`12:00:00 \u001b[32mSUCCESS\u001b[0m Step ${step} | Time: 0.10s | Loss: ${four(shown)} | Entropy: ${four(entropy)} | Mismatch KL: ${four(mismatch)} | Grad. Norm: ${four(norm)} | LR: ${rate} | Throughput: 1 tokens/s\n`); // prettier-ignore
  await passGap(step + 1, 'metrics');
}

/** Micro-batches of a rank: the longest samples first, each into the first that has room. */
function microBatchesOf(samples: readonly ReadMicroBatch[]): number {
  const lengths = samples.map(({ input_ids }) => input_ids.length).sort((a, b) => b - a);
  const rooms: number[] = [];
  for (const length of lengths) {
    const at = rooms.findIndex((room) => room >= length);
    if (at < 0) rooms.push(settings.model.seq_len - length);
    else rooms[at] = rooms[at]! - length;
  }
  return Math.ceil(rooms.length / Number(ranksText));
}

async function broadcast(model: StandInModel, step: number): Promise<void> {
  const folder = run('broadcasts', `step_${step}`);
  await model.broadcast(folder);
  await passGap(step, 'weights');
  closeSync(openSync(path.join(folder, 'STABLE'), 'a'));
  if ((step - 2) % settings.ckpt.interval !== 0)
    rmSync(run('broadcasts', `step_${step - 2}`), { recursive: true, force: true });
  await passGap(step, 'marker');
}

async function save(model: StandInModel, step: number): Promise<void> {
  const folder = place('checkpoints', `step_${step}`, 'trainer');
  await model.save(folder);
  await passGap(step, 'shards');
  writeFileSync(path.join(folder, '.metadata.tmp'), JSON.stringify({ step }));
  renameSync(path.join(folder, '.metadata.tmp'), path.join(folder, '.metadata'));
  await passGap(step, 'checkpoint');
}
