import { formatPath } from '../../toml/positions.ts';
import { isTable, type Table } from '../../toml/tables.ts';
import { setExtraBody, setRunName } from '../common-words.ts';
import type { Dialect, Own, Rename } from '../dialect.ts';
import { placed, placesOf } from '../places.ts';
import { sayCheckpoints, sayPlayers } from './prime-rl-differs.ts';
import { setHosted } from './prime-rl-hosted.ts';
import {
  defaultTrainerSince08,
  setMaxSteps,
  setTraining,
  type Version,
  warnOfOtherModels,
} from './prime-rl-meaning.ts';
import { setServerArguments } from './prime-rl.ts';
import { setRecomputation, withSwitches } from './prime-rl-memory.ts';
import { setNoClipping, setOptimizer } from './prime-rl-optimizer.ts';
import { primeRlRenames } from './prime-rl-renames.ts';
import { primeRlSftFields, primeRlSftTables } from './prime-rl-sft-fields.ts';
import { sentAnyway, setEvaluated, withSharedEnv } from './prime-rl-sources.ts';
import { found, hasTable, take, withoutNulls } from './prime-rl-words.ts';

/**
 * prime-rl's `sft`, supervised training, in a file of its own: today's names (0.8.1), and earlier ones since August
 * 2025. Defaults are today's.
 */
export const primeRlSft: Dialect = {
  name: 'prime-rl-sft',
  title: 'prime-rl 0.8.1, sft',
  fields: primeRlSftFields,
  renames: renames(),
  defaults: {
    model: 'Qwen/Qwen3-0.6B',
    learning_rate: 1e-6,
    loss: 'sft',
    trainer: defaultTrainerSince08,
    data: { name: 'PrimeIntellect/Reverse-Text-SFT', seq_len: 128, batch_size: 128 },
  },
  prepare: (table) => withoutNulls(withSwitches(table, version), primeRlSft, primeRlSftTables),
  together,
  proof: (table) => (isSftFile(table) ? 'data' : undefined),
  mayBe: isSftFile,
  synonyms: { learning_rate: 'lr', group_size: 'batch_size', max_length: 'seq_len' },
  hints: {
    'model.ac': 'write a table of its own: [model.ac] with freq = 1, which is every layer; "None" turns it off',
  },
};

const version = { trainer: '', wandb: ['monitors.wandb'] } as const satisfies Pick<Version, 'trainer' | 'wandb'>;

/** Recognized by data at the top, beside a table for the model, and no tables of a run's processes. */
export function isSftFile(table: Table): boolean {
  const { data, model, trainer, orchestrator } = table;
  if (trainer !== undefined || orchestrator !== undefined || typeof model === 'string' || !isTable(data)) return false;
  return ['name', 'seq_len', 'micro_batch_size', 'type'].some((key) => data[key] !== undefined);
}

/** Renames of trainer settings, which are at the top, and its own. */
function renames(): readonly Rename[] {
  const ofTrainer = primeRlRenames.flatMap((rename) => {
    const [was, is] = [rename.was, rename.is].map((path) => path.replace(/^trainer\./, ''));
    return rename.is.startsWith('trainer.') ? [{ ...rename, was: was!, is: is! }] : [];
  });
  const shared = primeRlRenames.filter(({ was, is }) =>
    [was, is].every(
      (path) =>
        /^(?:ckpt|resume|clean|wandb|monitors|inference|file_monitor)\b/.test(path) || path === 'clean_output_dir',
    ),
  );
  return [
    ...ofTrainer,
    ...shared,
    { since: '0.8.1', was: 'deployment.num_gpus', is: 'deployment.num_train_gpus' },
    { since: '0.8.1', was: 'deployment.num_nodes', is: 'deployment.num_train_nodes' },
    { since: '0.4', was: 'data.micro-batch-size', is: 'data.micro_batch_size' },
  ];
}

function together(asWritten: Table, own: Own): void {
  const written = withSharedEnv(asWritten, ['eval']);
  setRunName(own, (written['run'] as Table | undefined)?.['name'], ['run', 'name']);
  setHosted(written, own);
  if (own.get(['env_files']) !== undefined && !hasTable(written, 'eval')) {
    own.set(['env_files'], undefined);
    own.warn('env_files has no effect: a run on rows plays no environment.');
  }
  setTraining(written, own, { ...version, maxSteps: setMaxSteps(own) });
  take(written, own, 'model.name', ['model']);
  warnOfOtherModels(written, own, ['tokenizer.name', 'inference.vllm.model']);
  take(written, own, 'inference.vllm.max_model_len', ['inference', 'vllm', 'max_model_len']);
  setServerArguments(written, own);
  setRecomputation(written, own, version);
  setNoClipping(written, own, version);
  setOptimizer(written, own, version);
  setRows(written, own);
  setEvaluation(written, own);
  sayCheckpoints(written, own);
}

/** prime-rl's micro-batch is one long sequence; a step has as many sequences as micro-batches. */
function setRows(written: Table, own: Own): void {
  const [size, length, micro] = ['batch_size', 'seq_len', 'micro_batch_size'].map((key) =>
    found(written, `data.${key}`),
  );
  const [rows, tokens, each] = [Number(size?.value ?? 128), Number(length?.value ?? 128), Number(micro?.value ?? 1)];
  if (rows % each === 0) {
    own.set(['data', 'batch_size'], rows / each, size?.at ?? micro?.at);
    own.set(['data', 'seq_len'], tokens * each, length?.at ?? micro?.at);
    if (each > 1) {
      own.warn(
        `${formatPath(micro!.at)} = ${each}: prime-rl leaves out rows in which nothing is learned before data.seq_len (${tokens}) tokens; here those in which nothing is before ${tokens * each}, which is a sequence.`,
      );
    }
  } else {
    const expected = `a divisor of data.batch_size (${rows})`;
    own.refuse({ paths: [micro!.at, ...(size ? [size.at] : [])], expected, received: String(each) });
  }
  setParts(written, own);
  const gpus = found(written, 'deployment.num_train_gpus');
  if (gpus && Number(gpus.value) > 1) {
    own.warn(
      `${formatPath(gpus.at)} = ${String(gpus.value)}: prime-rl deals the rows out to its GPUs in turn, and each packs its own; here they are packed in one order.`,
    );
  }
  own.warn(
    'data: a conversation is one row, as in prime-rl. It is a row for each answer where the chat template opens the prompt with a thought, and earlier turns without: prime-rl has one row then, too. Rows are packed whole, and the loss is the mean over the tokens of a step, as in prime-rl since July 2026. Until then a row was cut where a sequence ended, and until March 2026 each micro-batch weighed alike.',
  );
}

/** Refuses several subsets or splits, which prime-rl samples in turn or by `probabilities`, as one thing. */
function setParts(written: Table, own: Own): void {
  const parts = (['subset', 'split'] as const).flatMap((part) => {
    const list = found(written, `data.${part}s`);
    return Array.isArray(list?.value) ? [{ part, list: list.value, at: list.at }] : [];
  });
  const several = parts.filter(({ list }) => list.length !== 1);
  if (several.length > 0) {
    own.refuse({
      paths: several.map(({ at }) => at),
      expected: 'a list of one: a run here has one source of rows; join the parts into one file, and name that',
      received: several.map(({ list }) => JSON.stringify(list)).join(' and '),
    });
    return;
  }
  for (const { part, list, at } of parts) own.set(['data', part], list[0], at);
  if (found(written, 'data.probabilities')) own.warn('data.probabilities has no effect: there is one source of rows.');
}

function setEvaluation(written: Table, own: Own): void {
  if (!hasTable(written, 'eval')) return;
  setEvaluated(written, own, 'eval');
  for (const path of ['eval.sampling', 'eval.source[].sampling']) {
    const ours = path.includes('[]') ? 'eval.env[].sampling' : 'eval.sampling';
    for (const at of placesOf(path, written))
      setExtraBody(own, written, { at, ours: placed(ours, at), sent: sentAnyway });
  }
  sayPlayers(written, own, ['eval']);
  own.warn(
    'eval.sampling: what is not written prime-rl leaves to its server, as the model’s generation_config.json has it; evaluations here are sampled as [ratchet.sampling] says, at temperature 1.',
  );
}
