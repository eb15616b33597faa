/**
 * Fields of prime-rl's `sft` files, at home and here in the same words. The trainer's are compared like those of a run.
 */
import type { Table } from '../../../config/toml/tables.ts';
import type { Meaning } from './compare.ts';
import { Home } from './files.ts';
import { environmentMeanings } from './prime-rl-environments.ts';
import { meanings } from './prime-rl.ts';
import type { WithoutMeaning } from './without-meaning.ts';

const own = ['data', 'deployment', 'eval', 'max_steps', 'resume', 'run', 'slurm', 'val', 'inference', 'renderer'];

/** Arranges the values as in a run's file: the trainer's in its table, evaluations in the orchestrator's. */
export function asRun(values: Table): Home {
  const entries = Object.entries(values);
  const { eval: evaluation, ...rest } = Object.fromEntries(entries.filter(([key]) => own.includes(key)));
  const trainer = Object.fromEntries(entries.filter(([key]) => !own.includes(key)));
  return new Home({
    ...rest,
    trainer: { ...trainer, max_steps: values['max_steps'] },
    orchestrator: { eval: evaluation },
  });
}

const ofTrainer = /^(?:trainer|max_steps|resume|ckpt|model|bench|tokenizer|inference\.(?:vllm\.)?quantization)/;
const about = (reads: readonly string[], start: RegExp): boolean => reads.length > 0 && start.test(reads[0]!);

const rows: readonly Meaning[] = [
  {
    what: 'rows',
    reads: ['data.name', 'data.type', 'data.fake', 'data.num_examples'],
    says: ['data.name'],
    home: (home) => [home.at('data.name'), home.at('data.type') ?? 'sft', home.at('data.num_examples')],
    here: ({ spec }) => [spec.data!.rows.path, 'sft', null],
  },
  {
    what: 'part of the data set',
    reads: ['data.subsets', 'data.splits', 'data.split', 'data.probabilities', 'data.stopping_strategy'],
    says: ['data.split'],
    home: (home) => [home.at('data.subsets'), home.at('data.splits') ?? [home.at('data.split') ?? 'train']],
    here: ({ spec: { data } }) => [
      data!.rows.hub!.subset === null ? null : [data!.rows.hub!.subset],
      [data!.rows.hub!.split],
    ],
  },
  {
    what: 'sequences',
    reads: ['data.seq_len', 'data.batch_size', 'data.micro_batch_size'],
    says: ['data.seq_len', 'each micro-batch weighed alike'],
    home: (home) => {
      const micro = home.number('data.micro_batch_size') ?? 1;
      return [home.number('data.seq_len')! * micro, home.number('data.batch_size')! / micro];
    },
    here: ({ spec: { data } }) => [data!.seqLen, data!.batchSize],
  },
  {
    what: 'packing, and what a micro-batch weighs',
    reads: ['data.pack_function', 'data.collate_mode'],
    says: ['packed whole'],
    home: (home) => (home.has('data.num_workers') ? 'whole' : 'cut'), // of July 2026, and those after it
    here: () => 'whole',
  },
  {
    what: 'order of rows',
    reads: ['data.shuffle', 'data.seed'],
    says: ['seed', 'shuffle'],
    home: (home) => [home.at('data.shuffle') ?? true, home.at('data.seed') ?? 0],
    here: ({ spec }) => [spec.data!.shuffle, spec.seed],
  },
  {
    what: 'messages that are learned',
    reads: ['data.loss_mask.*'],
    says: ['loss_mask'],
    home: (home) =>
      ['system', 'user', 'tool', 'assistant'].filter(
        (role) => home.at(`data.loss_mask.${role}`) ?? role === 'assistant',
      ),
    here: () => ['assistant'],
  },
  {
    what: 'processes that rows are dealt out to',
    reads: ['deployment.num_train_gpus', 'deployment.num_gpus'],
    says: ['deployment.num_'],
    home: (home) => home.at('deployment.num_train_gpus', 'deployment.num_gpus') ?? 1,
    here: () => 1,
  },
  {
    what: 'loss',
    reads: ['trainer.loss_impl'],
    says: ['loss'],
    home: () => ['cross_entropy', 'token'],
    here: ({ spec: { loss } }) => [loss.type, loss.aggregation],
  },
  {
    what: 'validation',
    reads: ['val'],
    says: ['val'],
    home: (home) => home.at('val'),
    here: () => null,
  },
];

export const sftMeanings: readonly Meaning[] = [
  ...rows,
  ...meanings
    .filter(({ reads }) => about(reads, ofTrainer) && !reads.some((path) => path.startsWith('orchestrator.train')))
    .filter(({ what }) => !['length of the trainer', 'loss', 'masks of whole sequences'].includes(what)),
  ...environmentMeanings.filter(
    ({ reads, what }) => about(reads, /^orchestrator\.eval/) || what === 'environments of evaluations',
  ),
];

export const sftWithoutMeaning: readonly WithoutMeaning[] = [
  { because: 'it says how many processes make rows ready, not which', fields: ['data.num_workers'] },
  { because: 'they are about made-up rows', fields: ['data.length', 'data.input_ids'] },
  {
    because: 'messages are written out with the model’s chat template; a renderer writes what it says',
    fields: ['renderer', 'trainer.use_renderer'],
  },
  { because: 'rows are packed into data.seq_len tokens', fields: ['trainer.model.seq_len'] },
  {
    because: 'for some days the schedule stood in the optimizer’s table; all files of then have the constant one',
    fields: ['trainer.optim.scheduler.type'],
  },
  { because: 'they say where metrics go', fields: ['trainer.monitor', 'trainer.outputs_dir', 'trainer.profile_path'] },
  {
    because: 'they say how the trainer’s processes live',
    fields: ['trainer.clean', 'trainer.clean_output_dir', 'trainer.dry_run', 'trainer.model.log_signature'],
  },
];
