import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accept, only } from './read-run.ts';

const minimal = 'model = "Qwen/Qwen3-4B"\n[[env]]\nid = "owner/gsm8k"\n';

describe('Hosted Training', () => {
  test('it trains LoRA adapters of rank 16, whose alpha the file may name', () => {
    assert.deepEqual([accept(minimal).spec.lora?.r, accept(minimal).spec.lora?.alpha], [16, 32]);
    assert.equal(accept(`lora_alpha = 64\n${minimal}`).spec.lora?.alpha, 64);
  });

  test('a version beside an id is part of the id', () => {
    const { spec } = accept(`${minimal}version = "1.2.0"\n[[eval.env]]\nid = "owner/aime@0.1"\n`);
    assert.equal(spec.environments[0]?.id, 'owner/gsm8k@1.2.0');
    assert.equal(spec.eval?.environments[0]?.id, 'owner/aime@0.1');
  });

  test('a v1 taskset is the environment and its arguments', () => {
    const taskset = '{ id = "owner/sort-v1", min_turns = 3 }';
    const { spec, readAs } = accept(
      `model = "Qwen/Q"\n[[env]]\nname = "sort"\ntaskset = ${taskset}\nharness = { id = "default" }\n`,
    );
    assert.equal(readAs.dialect, 'hosted');
    const [environment] = spec.environments;
    assert.deepEqual(
      [environment?.id, environment?.name, environment?.args],
      ['owner/sort-v1', 'sort', { min_turns: 3 }],
    );
    assert.deepEqual(environment?.agent, { harness: { id: 'default' } });
    assert.match(only(`${minimal}taskset = ${taskset}\n`).expected, /either an id or a taskset/);
  });

  test('the difficulty buffer is that of 0.5.61, and its ratios are the weights of the environments', () => {
    const text = `${minimal}[[env]]\nid = "owner/b"\n[buffer]\nenv_ratios = [0.3, 0.7]\neasy_threshold = 0.8\nonline_difficulty_filtering = true\nseed = 5\n`;
    const { spec, readAs } = accept(text);
    assert.equal(readAs.dialect, 'hosted-0.5.61');
    assert.deepEqual(
      spec.environments.map(({ weight }) => weight),
      [0.3, 0.7],
    );
    assert.deepEqual([spec.filter.onlineDifficultyFiltering, spec.seed], [true, 5]);
    assert.deepEqual(spec.environments[0]?.pools, {
      easyThreshold: 0.8,
      hardThreshold: null,
      easyFraction: 0,
      hardFraction: 0,
    });
    const { path, received, line } = only(text.replace('[0.3, 0.7]', '[0.3]'));
    assert.deepEqual([path, received, line], ['buffer.env_ratios', 'a list of 1', 7]);
    assert.match(only(text, 'hosted').suggestion ?? '', /--dialect hosted-0.5.61/);
  });

  test('as many steps ahead as the file says, up to what a run can hold', () => {
    const { spec, warnings } = accept(`max_async_level = 4\n${minimal}`);
    assert.equal(spec.maxAsyncLevel, 4);
    assert.doesNotMatch(warnings.join(), /max_async_level/);
    assert.match(only(`max_async_level = 65\n${minimal}`).expected, /64/);
  });

  test('a cap on what is in flight is one here, whatever a batch is, and stands alone', () => {
    for (const most of [32, 96]) {
      const { spec } = accept(`batch_size = 64\nmax_inflight_rollouts = ${most}\n${minimal}`);
      assert.deepEqual([spec.maxConcurrent, spec.oversamplingFactor], [most, 1]);
    }
    const both = only(`max_inflight_rollouts = 96\noversampling_factor = 2.0\n${minimal}`);
    assert.match(both.expected, /only one of max_inflight_rollouts and oversampling_factor/);
  });

  test('parameters of the request in extra_body count, but not twice', () => {
    assert.equal(accept(`${minimal}[sampling]\nextra_body = { top_p = 0.9 }\n`).spec.sampling.topP, 0.9);
    const unknown = only(`${minimal}[sampling]\nextra_body = { top_p = 0.9, guided_json = "x" }\n`);
    assert.deepEqual(
      [unknown.path, unknown.suggestion],
      ['sampling.extra_body', 'known, not supported yet: further fields of a request'],
    );
    const twice = only(`${minimal}[sampling]\ntemperature = 0.7\nextra_body = { temperature = 1.0 }\n`);
    assert.match(twice.expected, /temperature in one of the two places/);
  });

  test('filters of rollouts are as prime-rl has them, in the slot where they stand', () => {
    const { spec } = accept(
      `${minimal}[[pre_batch_filters]]\ntype = "zero_advantage"\n[[pre_batch_filters]]\ntype = "repetition"\nwindow = 100\n[[post_batch_filters]]\ntype = "gibberish"\nenforce = true\n`,
    );
    assert.deepEqual(spec.rolloutFilters, {
      pre: [
        { type: 'zero_advantage', enforce: true },
        { type: 'repetition', enforce: false, window: 100, probThreshold: 0.99 },
      ],
      post: [{ type: 'gibberish', enforce: true, tokenIdThreshold: 100_000, logprobOffset: 2 }],
    });
    const misplaced = only(`${minimal}[[pre_batch_filters]]\ntype = "gibberish"\nwindow = 3\n`);
    assert.deepEqual(
      [misplaced.path, misplaced.expected, misplaced.received],
      ['pre_batch_filters[0].window', 'nothing, or type = "repetition" beside it', '3 for type = "gibberish"'],
    );
  });

  test('a trajectory strategy is honoured, and switches of the chat template are its variables', () => {
    const { spec } = accept(`trajectory_strategy = "branching"\n${minimal}[sampling]\nenable_thinking = false\n`);
    assert.equal(spec.trajectoryStrategy, 'branching');
    assert.deepEqual(spec.sampling.templateArguments, { enable_thinking: false });
  });

  test('what trains something else is refused where it is written', () => {
    assert.match(only(`loss = "sft"\n${minimal}`).expected, /a \[teacher\] beside it/);
    assert.match(only(`checkpoint_id = "abc"\n${minimal}`).suggestion ?? '', /warm start/);
    assert.match(
      only(`${minimal}[sampling]\nenable_thinking = true\nreasoning_effort = "low"\n`).expected,
      /only one of/,
    );
    const schedule = only(
      `${minimal}[sampling]\ntemperature = 1.0\n[sampling.temp_scheduler]\nstart_temperature = 1.5\nend_temperature = 0.5\n`,
    );
    assert.equal(schedule.path, 'sampling.temperature');
  });

  test('errors that show after the translation stand where the field was written', () => {
    const { line, path, suggestion } = only(`model = "Qwen/Q"\n\nbatch_size = 100\n[[env]]\nid = "a/b"\n`);
    assert.deepEqual([line, path, suggestion], [3, 'batch_size', 'use 96 or 104']);
  });

  test('[ratchet] takes our own words beside', () => {
    assert.equal(accept(`${minimal}[ratchet.store]\nuri = "file:elsewhere"\n`).spec.store.uri, 'file:elsewhere');
  });
});

describe('the flat files of the documentation', () => {
  test('the learning rate is the documentation’s for what is trained', () => {
    const rate = (text: string) => accept(`${minimal}${text}`, 'flat').spec.learningRate;
    assert.deepEqual([rate('[lora]\n'), rate('[lora]\nenabled = false\n'), rate('')], [1e-5, 1e-6, 1e-6]);
  });

  test('an empty table is the thing with its defaults', () => {
    const { spec } = accept(`${minimal}weight = 0.5\n[lora]\n[kl_penalty]\n[wandb]\n`);
    assert.deepEqual([spec.lora?.r, spec.kl.beta, spec.wandb?.project], [16, 0.1, null]);
  });
});
