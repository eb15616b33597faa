import { args, choice, flag, text, texts, whole } from '../../toml/values.ts';
import { z } from 'zod';
import { dataName } from '../../settings/sft.ts';
import { becomes, type Field, ignored, only, refused, together } from '../dialect.ts';
import { all, type Rows, under, wordsOf } from '../ours.ts';
import { client, evaluation, inference, top, trained, trainer, why } from './prime-rl-fields.ts';

/** Every field of `sft`'s files in prime-rl 0.8.1 (packages/prime-rl-configs, configs/sft.py), and those that it dropped since August 2025. */

const heldOut =
  '[eval] takes its place, which plays environments every eval.interval steps; a loss on held-out rows is not measured here, so leave [val] out';
const madeUp = 'made-up rows are of a bench; see `npm run bench`';
const answersAlone = 'the assistant’s messages alone are learned here';

const data: Rows = {
  type: only('sft', madeUp, choice('sft', 'fake')),
  name: becomes('data.name', dataName(), { default: 'PrimeIntellect/Reverse-Text-SFT' }),
  batch_size: together('`data.batch_size`, over `micro_batch_size`', whole(1), { default: '128' }),
  seq_len: together('`data.seq_len`, times `micro_batch_size`', whole(1), { default: '128' }),
  micro_batch_size: together('as long sequences, of which a step has fewer', whole(1), { default: '1' }),
  pack_function: only('cat', 'rows are packed one after the other', choice('cat', 'stack')),
  collate_mode: only('packing', 'rows are packed one after the other', choice('packing', 'padding')),
  num_workers: ignored('rows are drawn by the rollout workers, in one order', whole(0)),
  'subsets?': together('`data.subset`, where there is one', texts()),
  'splits?': together('`data.split`, where there is one', texts()),
  split: becomes('data.split', text(), { default: 'train' }),
  'probabilities?': together('nothing; it is about several subsets or splits', z.array(z.number())),
  stopping_strategy: ignored('it is about several subsets or splits', choice('first_exhausted', 'all_exhausted')),
  shuffle: becomes('data.shuffle'),
  seed: becomes('seed', whole(0), { default: '0' }),
  'num_examples?': refused('all rows are learned; name a file with fewer'),
  ...all('loss_mask.system loss_mask.user loss_mask.tool', only(false, answersAlone, flag())),
  'loss_mask.assistant': only(true, answersAlone, flag()),
  ...all('length input_ids', ignored('it is about made-up rows', text())),
  fake: only(false, madeUp, z.union([flag(), text()]).meta({ expected: 'false' })),
};

const deployment: Rows = {
  'deployment.type': ignored(why.processes, choice('single_node', 'multi_node')),
  ...all(
    'deployment.gpus_per_node deployment.num_train_nodes deployment.nodes_per_fsdp_group?',
    ignored(why.processes, whole(1)),
  ),
  ...all(
    'deployment.num_infer_gpus deployment.num_infer_nodes deployment.num_infer_replicas',
    ignored(why.processes, whole(0)),
  ),
  'deployment.num_train_gpus': together(
    'nothing; of several a warning: prime-rl deals rows out to them in turn',
    whole(1),
    { default: '1' },
  ),
};

/** Removes fields that only runs with rollouts have. */
function without(rows: Rows, names: string): Rows {
  return Object.fromEntries(Object.entries(rows).filter(([name]) => !wordsOf(names).includes(name)));
}

const ofRollouts = `loss.type loss.dppo_mask_low loss.dppo_mask_high loss.ipo_mask_low loss.ipo_mask_high loss.ipo_threshold loss.eps
  loss.max_importance_ratio loss.ratio_low loss.ratio_high loss.score_centering loss.adv_tau
  loss.kl_tau loss.teacher_tau loss.import_path loss.kwargs data.fake? max_async_level enable_router_replay enable_token_export
  max_concurrent_runs bench?`;
const ofRuns = `seq_len? inference_gpu_ids trainer_gpu_ids deployment.num_teacher_gpus? deployment.num_teacher_nodes? teacher_gpu_ids?
  teacher_inference? max_async_level?`;

const processes = (schema: z.ZodType): Field => ignored(why.processes, schema);
const evaluated: Rows = {
  ...evaluation,
  ...under('client', client),
  'concurrency.max_inflight?': processes(whole(1)),
  ...all(
    'concurrency.initial_inflight? concurrency.min_inflight max_inflight_episodes env_server_base_port',
    processes(whole(1)),
  ),
};

export const primeRlSftFields: Readonly<Record<string, Field>> = {
  ...under('', { ...without(trainer, ofRollouts), ...without(top, ofRuns), ...deployment }),
  ...under('model', trained),
  'model.seq_len': ignored('rows are packed into data.seq_len tokens', whole(1)),
  ...all('model.load_using_meta model.liger_kernel model.log_signature', ignored(why.speed, flag())),
  ...under('data', data),
  val: refused(heldOut),
  ...under('eval', evaluated),
  ...under('inference', inference),
  renderer: ignored('messages are written out with the model’s chat template', args()),
  use_renderer: ignored('messages are written out with the model’s chat template', flag()),
  loss_impl: ignored(why.speed, choice('torch', 'liger', 'liger_fused', 'quack_fused')),
};

/** Tables that turn something on, and may be "None". */
export const primeRlSftTables = `ckpt eval gc heartbeat inference model.compile model.lora monitors.file monitors.wandb resume slurm tokenizer
  val wandb weight_broadcast`;
