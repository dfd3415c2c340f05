"""Which tests `pytest -m quick` runs: those of QUICK, without SLOW. A new file of a folder belongs by itself. And of
which tests a run of all of them takes some variants alone (THINNED)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from zlib import crc32

HERE = Path(__file__).parent

# Folders and files. Those of host and mock: the host driver, and both vendors' drivers on the stand-ins, in one process
# and in several.
QUICK = (
    "unit",
    "errors",
    "host/test_driver_host.py",
    "host/test_processes.py",
    "mock/test_requests.py",
    "mock/test_symmetric.py",
)

# Files, and tests of other files: they compile kernels, simulate large schedules, start many processes or a browser, or
# try very many cases; and those of `tools` and of the tests on GPUs.
SLOW = frozenset(
    {
        "unit/test_bench.py",
        "unit/test_bench_processes.py",
        "unit/test_beside.py",
        "unit/test_block_fit.py::test_room_is_what_trying_every_layout_finds",
        "unit/test_calibrate.py::test_the_figures_are_found",
        "unit/test_calibrate.py::test_what_is_measured_predicts_what_was_measured",
        "unit/test_campaign.py",
        "unit/test_cli_pipes.py",
        "unit/test_cli_run.py::test_more_gpus_than_the_machine_has_are_told",
        "unit/test_cli_run.py::test_more_gpus_than_the_nodes_have_are_told",
        "unit/test_concurrent.py::test_all_other_schedules_carry_out_their_operation_once",
        "unit/test_concurrent.py::test_all_settings_of_the_check_compile",
        "unit/test_concurrent.py::test_iterations_are_counted_by_what_is_written_anew",
        "unit/test_concurrent.py::test_settings_by_their_threads_are_made_in_processes_of_their_own",
        "unit/test_docs.py::test_commands_run_and_print_what_is_shown",
        "unit/test_sharing.py::test_large_plans_enter",
        "unit/test_explore.py::test_the_page_s_commands_are_understood",
        "unit/test_explore.py::test_the_page_s_tables_are_made_of_a_sweep",
        "unit/test_format.py::test_a_large_file_is_laid_out_soon",
        "unit/test_format.py::test_any_layout",
        "unit/test_gemm_bench.py",
        "unit/test_glossary.py::test_the_classes_are_there",
        "unit/test_gpu_parts.py",
        "unit/test_gpu_schedules.py",
        "unit/test_hardware_queues.py::test_one_queue",
        "unit/test_kernel_compiler.py::test_processes_share_the_cache",
        "unit/test_kernel_waits.py",
        "unit/test_language_doc.py::test_example_runs",
        "unit/test_language_doc.py::test_grammar_is_the_implemented_one",
        "unit/test_lsp.py::test_a_newer_text_ends_the_proof_of_the_older_one",
        "unit/test_lsp.py::test_an_editor_whose_script_fails_or_waits_in_vain_ends",
        "unit/test_machines.py::test_sixty_four_ranks_in_eight_nodes_are_explained",
        "unit/test_measured.py",
        "unit/test_memory_order.py",
        "unit/test_mfma_gemm.py",
        "unit/test_model_check.py",
        "unit/test_naive_amd.py",
        "unit/test_names.py::test_a_large_wrong_schedule_is_answered_soon",
        "unit/test_nodes.py::test_no_semaphore_leads_to_another_node",
        "unit/test_noise.py::test_a_ring_and_a_collective_of_many_ranks",
        "unit/test_noise.py::test_a_sum_that_stops_growing",
        "unit/test_noise.py::test_shipped_schedules_at_8_ranks_are_exact_enough",
        "unit/test_noise.py::test_wrong_numbers_of_one_sign_are_code_4",
        "unit/test_on_two.py",
        "unit/test_page.py::test_any_damage_to_a_file_is_an_error_of_the_user",
        "unit/test_page.py::test_in_a_browser",
        "unit/test_plan_check.py",
        "unit/test_readme.py",
        "unit/test_run_plan.py::test_every_mode_and_placement",
        "unit/test_run_plan.py::test_mutants_are_made_of_run_plans_that_hold",
        "unit/test_schedules.py::test_no_schedule_is_faster_than_ideal",
        "unit/test_select.py::test_at_decode_sizes_nothing_is_cut",
        "unit/test_select.py::test_on_several_nodes_schedules_send_messages",
        "unit/test_select.py::test_rules_say_what_is_fastest_on_two_gpus",
        "unit/test_sm80_gemm.py",
        "unit/test_sm90_gemm.py",
        "unit/test_sm90_registers.py",
        "unit/test_syntax_errors.py::test_a_hostile_megabyte_is_answered_soon",
        "unit/test_syntax_errors.py::test_any_text_gets_a_tree_or_diagnostics",
        "unit/test_weight.py::test_the_budget_is_kept",
    }
)


# Tests of many costly variants: `pytest` takes one of so many; `pytest FILE`, `pytest -k …` and FICCO_ALL=1 take each.
THINNED = {
    "golden/test_device_plans.py::test_every_mode_passes_the_check_and_reads_back": 3,
    "golden/test_device_plans.py::test_processes_share_semaphores_alone": 2,
    "host/test_hierarchical.py::test_proven_on_eight_nodes_of_eight": 2,
    "host/test_hierarchical.py::test_right_on_nodes_of_every_size": 2,
    "host/test_proof_by_mutation.py::test_what_is_accepted_is_right": 2,
    "host/test_shipped.py::test_other_topologies": 2,
    "host/test_types_by_mutation.py::test_refused_or_right": 2,
    "mock/test_callers.py::test_callers_work_stands_around_the_runs": 2,
    "mock/test_callers_graphs.py::test_a_layer_that_its_caller_captures": 2,
    "mock/test_device_damage.py::test_what_the_check_accepts_runs_right": 2,
    "mock/test_faults.py::test_an_executor_goes_on_after_a_call_that_failed": 2,
    "mock/test_faults.py::test_faults_are_told_and_leave_nothing": 2,
    "mock/test_missing_waits.py::test_each_wait_taken_out_gives_wrong_numbers_and_a_report": 2,
    "mock/test_rows.py::test_every_schedule": 2,
    "mock/test_rows.py::test_the_librarys_products": 2,
    "mock/test_sharing.py::test_right_in_every_order": 2,
    "mock/test_shipped.py::test_right_in_every_order": 3,
    "mock/test_tuned.py::test_eight_ranks_with_fp32_and_rows_at_any_place": 2,
    "mock/test_tuned.py::test_every_schedule": 3,
    "mock/test_tuned.py::test_other_tiles_in_clusters": 3,
    "unit/test_gpu_parts.py::test_naive_kernels_compile_without_spills": 2,
    "unit/test_hardware_queues.py::test_one_queue": 3,
    "unit/test_mfma_gemm.py::test_numbers_are_exact": 3,
    "unit/test_mfma_gemm.py::test_registers_without_spills_and_matrix_instructions": 2,
    "unit/test_naive_amd.py::test_functions": 2,
    "unit/test_noise.py::test_shipped_schedules_at_8_ranks_are_exact_enough": 2,
    "unit/test_plan_check.py::test_a_mark_swapped_with_a_wait_deadlocks_or_not_as_the_orders_say": 2,
    "unit/test_plan_check.py::test_a_stream_cut_in_two_is_a_race_where_its_order_was_needed": 2,
    "unit/test_plan_check.py::test_each_wait_taken_out_is_a_race": 3,
    "unit/test_plan_check.py::test_each_wait_taken_out_is_a_race_on_other_machines": 3,
    "unit/test_rows.py::test_the_hopper_kernel": 2,
    "unit/test_run_plan.py::test_every_mode_and_placement": 2,
    "unit/test_schedules.py::test_no_schedule_is_faster_than_ideal": 2,
    "unit/test_select.py::test_at_decode_sizes_nothing_is_cut": 2,
    "unit/test_sm80_gemm.py::test_registers_without_spills_as_the_catalogue_says": 2,
    "unit/test_sm90_registers.py::test_registers_without_spills_as_the_catalogue_says": 2,
}


def is_thinned(given: Iterable[str], chosen: bool) -> bool:
    """Whether a run takes some of what costs much: one of all tests, whose arguments are `given`, and in which nothing
    is `chosen` by a word."""
    whole = all(Path(one).resolve() in (HERE, HERE.parent) for one in given)
    return whole and not chosen and not os.environ.get("FICCO_ALL")


def left_out(path: Path, test: str, variant: str) -> bool:
    """Whether such a run leaves out a variant of a test."""
    return crc32(variant.encode()) % THINNED.get(f"{_name(path)}::{test}", 1) != 0


@cache
def _name(path: Path) -> str:
    """Of a file, in this folder; empty elsewhere."""
    return path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else ""


def is_quick(path: Path, test: str = "") -> bool:
    """Whether a test of this file has the marker; without a test, whether one may have it."""
    name = _name(path)
    belongs = any(name == part or name.startswith(f"{part}/") for part in QUICK)
    return belongs and not {name, f"{name}::{test}"} & SLOW


def ignored(path: Path, expression: str) -> bool | None:
    """For pytest: with `-m quick` the other files are not even imported."""
    is_other = path.name.startswith("test_") and path.suffix == ".py" and not is_quick(path)
    return True if expression == "quick" and is_other else None
