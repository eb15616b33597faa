import { z } from 'zod';
import { args, choice, flag, positive, text, whole } from '../values.ts';
import { becomes, type Field, ignored, refused, together } from './dialect.ts';
import { nullable, port, texts, why } from './prime-rl-words.ts';

/** What several tables of prime-rl's files since v0.5 have alike. */

export type Fields = Readonly<Record<string, Field>>;

export const temperature = () => z.number().min(0).max(2).meta({ expected: 'a number from 0 to 2' });
export const processes = (schema: z.ZodType): Field => ignored(why.processes, schema, { isNullable: true });
export const speed = (schema: z.ZodType): Field => ignored('it is about the speed or the memory of GPUs alone', schema);
export const python = (what: string, place: string): Field =>
  refused(`${what} in Python; write it in TypeScript and name it in [ratchet.${place}] import`);
export const teacher: Field = { ...refused(why.teacherServer), isNullable: true };
export const gone = (schema: z.ZodType): Field => together('refused where it is on', schema);

export const log: Fields = {
  'log.level': ignored(why.logs, text(), { isNullable: true }),
  'log.vf_level': ignored(why.logs, text()),
  'log.json_logging': ignored(why.logs, flag()),
  'log.log_data': ignored(why.logs, flag()),
  'log.interval': ignored(why.logs, positive()),
  'log.file': ignored(why.logs, flag(), { isNullable: true }),
  'log.env_worker_logs': ignored(why.logs, flag()),
  'log.ranks_filter': ignored(why.logs, z.array(z.int()).meta({ expected: 'a list of ranks' })),
};
export const checkpoints: Fields = {
  ...nullable({
    'ckpt.interval': together('`checkpoints.interval`; without it only the end is kept', whole(1)),
    'ckpt.keep_last': together('`checkpoints.keep_last`', whole(1)),
    'ckpt.keep_interval': together('`checkpoints.keep_interval`', whole(1)),
    'ckpt.output_dir': ignored('checkpoints lie in the run’s store', text()),
    'ckpt.wait_for_weights_timeout': ignored(why.checkpoints, whole(1)),
  }),
  'ckpt.skip_progress': ignored(why.checkpoints, flag()),
};
export const monitors: Fields = {
  ...nullable({
    'monitors.wandb.project': together('`wandb.project`', text(), { usual: 'prime-rl' }),
    'monitors.wandb.entity': together('`wandb.entity`', text()),
    'monitors.wandb.name': together('`wandb.name`', text()),
    'monitors.wandb.group': together('`wandb.group`', text()),
    'monitors.wandb.tags': together('`wandb.tags`', texts()),
    'monitors.wandb.offline': together('`wandb.mode`', flag()),
    'monitors.wandb.shared': ignored(why.wandb, flag()),
    'monitors.wandb.id': ignored(why.wandb, text()),
    'monitors.wandb.log_extras': ignored(why.wandb, args()),
    'monitors.prime.name': ignored(why.monitor, text()),
    'monitors.prime.run_name': ignored(why.monitor, text()),
    'monitors.prime.base_url': ignored(why.monitor, text()),
    'monitors.prime.frontend_url': ignored(why.monitor, text()),
    'monitors.prime.team_id': ignored(why.monitor, text()),
    'monitors.prime.api_key_var': ignored(why.monitor, text()),
    'monitors.prime.log_extras': ignored(why.monitor, args()),
  }),
  'monitors.file.path': ignored('metrics are in the run’s folder, as metrics.jsonl', text()),
};
export const tokenizer: Fields = nullable({
  'tokenizer.name': together('a warning where it is not the model’s', text()),
  'tokenizer.trust_remote_code': becomes('trainer.trust_remote_code', flag()),
  'tokenizer.chat_template': becomes('tokenizer.chat_template', text()),
});
export const broadcast: Fields = {
  'weight_broadcast.type': ignored(why.broadcast, choice('filesystem', 'nccl', 'nixl')),
  'weight_broadcast.host': ignored(why.broadcast, text()),
  'weight_broadcast.port': ignored(why.broadcast, port()),
  'weight_broadcast.timeout': ignored(why.broadcast, whole(1)),
  'weight_broadcast.session_id': ignored(why.broadcast, text()),
  'weight_broadcast.inference_world_size': ignored(why.broadcast, whole(1)),
  'weight_broadcast.quantize_in_weight_transfer': ignored(why.broadcast, flag()),
  'weight_broadcast.save_sharded': ignored(why.broadcast, flag()),
  'weight_broadcast.save_format': ignored(why.broadcast, choice('safetensors', 'torch')),
};
export const transport: Fields = {
  'rollout_transport.type': ignored(why.transport, choice('filesystem', 'zmq')),
  'rollout_transport.host': ignored(why.transport, text()),
  'rollout_transport.port': ignored(why.transport, port()),
  'rollout_transport.hwm': ignored(why.transport, whole(0)),
};
export const variables = () => z.record(z.string(), z.string()).meta({ expected: 'a table of texts' });
export const envVars = ignored('environment variables are set where the workers run', variables());
export const vlm: Field = { ...refused('models that see; Ratchet trains on text'), isNullable: true };
