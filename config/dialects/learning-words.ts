import { z } from 'zod';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../../core/limits.ts';
import { headerTable, serverUrls, variableName } from '../model-access.ts';
import { atLeastZero, choice, positive, text, whole } from '../values.ts';

/** What a run learns from, and by which loss, in our own words. */

export const runKinds = ['rl', 'sft', 'opd'] as const;

const lossTypes = ['cispo', 'grpo', 'importance_sampling', 'dppo', 'ipo', 'gspo', 'dro', 'custom'] as const;

/** Code of the user's: a path from the config's folder if it begins with a dot. */
export const codeFile = () =>
  z
    .string()
    .regex(/\.[cm]?[jt]s$/)
    .meta({ expected: 'a .ts or .js file beside or below this config, such as "./my-loss.ts"' });

export const lossTable = () =>
  z.strictObject({
    /** Missing = cispo, or what distillation asks for. */
    type: choice(...lossTypes).optional(),
    clip_low: atLeastZero().optional(),
    clip_high: positive().optional(),
    mask_low: atLeastZero().optional(),
    mask_high: positive().optional(),
    kl_tau: atLeastZero().optional(),
    /** Of dro, in Tinker's word: twice the weight of (ln ρ)². */
    beta: atLeastZero().optional(),
    /** prime-rl's names for the weights of the reward's advantage and of the teacher's lead. */
    adv_tau: atLeastZero().optional(),
    teacher_tau: atLeastZero().optional(),
    dr_grpo_tokens: whole(1).optional(),
    /** Missing = token; of gspo sequence. */
    aggregation: choice('token', 'sequence', 'dr_grpo').optional(),
    import: codeFile().optional(),
  });

/** A stronger model: servers of its own, or a folder that the run's policy servers hold. */
export const teacherTable = <Sampling extends z.ZodObject>(sampling: Sampling) =>
  z.strictObject({
    /** What its servers call it; without servers a folder of weights. */
    model: text().optional(),
    url: serverUrls().optional(),
    endpoint_id: text().optional(),
    endpoints_path: text().optional(),
    api_key_var: variableName().optional(),
    headers: headerTable().default({}),
    /** Seconds. */
    timeout: positive().default(inferenceTimeoutDefaultS),
    max_concurrent: whole(1).default(inferenceConcurrencyDefault),
    /** Lies over [sampling], where it plays the rollouts. */
    sampling: sampling.optional(),
  });
