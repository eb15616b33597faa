import { accessDefaults } from '../model-access-spec.ts';
import { keyOf } from '../model-access.ts';
import { usualKey } from '../../core/eval/model-servers.ts';
import type { RunSpec, TeacherSpec } from '../run-spec.ts';
import type { RatchetConfig } from './ratchet.ts';
import { laidOver, samplingSpec } from './own-sampling.ts';

/** Bounds of the ratio where the config names none: PPO's ε = 0.2 on either side; cispo has no lower one. gspo's are the paper's. */
const defaultClips: Readonly<Record<string, { low: number; high: number }>> = {
  cispo: { low: 0, high: 3 },
  gspo: { low: 1 - 3e-4, high: 1 + 4e-4 },
};
const otherClip = { low: 0.8, high: 1.2 };

/** prime-rl's, of the losses that are its own; on-policy distillation is ipo that leaves out only what fell. */
const defaultMasks: Readonly<Record<string, { low: number; high: number | null; klTau: number }>> = {
  dppo: { low: 0.2, high: 0.2, klTau: 1e-3 },
  ipo: { low: 0.1, high: 0.1, klTau: 1e-3 },
  opd: { low: 0.2, high: null, klTau: 1e-3 },
};

/** That of Tinker's example. */
const droBeta = 0.05;

/** The type that is written, or what the kind of run asks for. */
export function lossTypeOf({ loss, trainer }: Pick<RatchetConfig, 'loss' | 'trainer'>): RunSpec['loss']['type'] {
  if (loss === 'sft') return 'cross_entropy';
  return trainer.loss.type ?? (loss === 'opd' ? 'ipo' : 'cispo');
}

/** Whether what is trained asks for advantages: without a teacher's rollouts or log probabilities. */
export function learnsFromRewards({ loss, trainer }: Pick<RatchetConfig, 'loss' | 'trainer'>): boolean {
  return loss === 'rl' && (trainer.loss.teacher_tau ?? 0) === 0;
}

export function lossSpec(config: RatchetConfig): RunSpec['loss'] {
  const { loss: kind, trainer, sampling } = config;
  const { clip_low, mask_low, mask_high, kl_tau, adv_tau, teacher_tau, aggregation, import: file } = trainer.loss;
  const { beta = droBeta } = trainer.loss;
  const type = lossTypeOf(config);
  const isUsualOpd = kind === 'opd' && trainer.loss.type === undefined;
  const usual = defaultMasks[isUsualOpd ? 'opd' : type] ?? { low: 0, high: null, klTau: 0 };
  const clip = defaultClips[type] ?? otherClip;
  return {
    type,
    clipLow: clip_low ?? clip.low,
    clipHigh: trainer.loss.clip_high ?? trainer.clip_high ?? clip.high,
    maskLow: mask_low ?? usual.low,
    maskHigh: mask_high ?? usual.high,
    klTau: type === 'dro' ? beta / 2 : (kl_tau ?? usual.klTau),
    advantageTau: adv_tau ?? (kind === 'opd' ? 0 : 1),
    teacherTau: teacher_tau ?? (kind === 'opd' ? 1 : 0),
    aggregation: aggregation ?? (type === 'gspo' ? 'sequence' : 'token'),
    maxTokens: trainer.loss.dr_grpo_tokens ?? sampling.max_tokens,
    import: file === undefined ? null : { path: file, sha256: null },
  };
}

/** Without servers its model is a folder. */
export function teacherSpec({ loss, teacher, sampling }: RatchetConfig): TeacherSpec | null {
  if (teacher === undefined) return null;
  const { model = null, url, endpoint_id, endpoints_path = accessDefaults.endpointsPath } = teacher;
  const urls = url === undefined ? [] : [url].flat();
  const isFolder = urls.length === 0 && endpoint_id === undefined;
  const [first] = urls;
  return {
    role: loss === 'sft' ? 'samples' : 'scores',
    folder: isFolder ? model : null,
    model: isFolder || endpoint_id !== undefined ? null : model,
    urls,
    endpoints: endpoint_id === undefined ? null : { path: endpoints_path, id: endpoint_id },
    apiKeyVar:
      teacher.api_key_var === undefined
        ? first === undefined
          ? null
          : usualKey(first)
        : (keyOf(teacher.api_key_var)?.variable ?? null),
    headers: teacher.headers,
    timeoutS: teacher.timeout,
    maxConcurrent: teacher.max_concurrent,
    sampling: samplingSpec(laidOver(sampling, teacher.sampling ?? {})),
  };
}
