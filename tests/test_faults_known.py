"""Faults that broke other harnesses: each has tests here, by name, that fail where it is put in."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
PROVIDER: Final = "daemon/provider"
HISTORY: Final = f"{PROVIDER}/test_fault_history.py"
ANSWERS: Final = f"{PROVIDER}/test_fault_answers.py"
HARNESS: Final = "daemon/harness/test_harness.py"
EDIT: Final = "daemon/harness/test_edit.py"
FAULTS: Final = "e2e/test_faults.py"
SHELL: Final = "e2e/test_shell.py"
DISK: Final = "e2e/test_disk.py"
BASH: Final = "daemon/worker/test_bash.py"
OUTPUT: Final = "daemon/worker/test_output.py"
PROPERTY: Final = f"{PROVIDER}/test_wire_property.py::test_every_request_of_any_session_is_accepted"
DECODERS: Final = ("messages", "chat", "responses", "gemini", "converse")


def _of_all(name: str, *wires: str) -> tuple[str, ...]:
    return tuple(f"{PROVIDER}/test_{wire}.py::{name}" for wire in wires or DECODERS)


KNOWN: Final[dict[str, tuple[str, ...]]] = {
    # A: histories that the provider refuses
    "A1 a call without a result": (
        f"{HISTORY}::test_a1_of_three_calls_each_has_one_result_though_one_alone_had_come_back",
        f"{HARNESS}::test_an_orphan_call_is_asked_for_and_not_run_anew_by_us",
        "e2e/test_crash.py::test_a_daemon_killed_five_times_loses_nothing_and_does_nothing_twice",
        "e2e/test_midway.py::test_whatever_is_killed_and_when_each_call_is_done_once_or_said_to_be_unknown",
        PROPERTY,
    ),
    "A2 half a call that was kept": (
        f"{HISTORY}::test_a2_half_a_call_leaves_neither_a_call_nor_a_result",
        "daemon/test_chain.py::test_blocks_of_tries_that_no_step_closed_never_enter",
        f"{FAULTS}::test_an_answer_that_breaks_off_three_ways_counts_once_and_its_half_calls_never_run",
    ),
    "A3 a cut between a call and its result": (
        f"{HISTORY}::test_a3_a_summary_at_any_place_and_a_second_one_part_no_call_from_its_result",
        "daemon/test_chain.py::test_a_summary_at_every_cut_keeps_calls_and_results_together",
        "daemon/test_chain.py::test_a_summary_while_calls_run_leaves_them_their_results",
        PROPERTY,
    ),
    "A4 text in front of results": (
        f"{HISTORY}::test_a4_what_is_posted_while_calls_run_stands_behind_all_results",
        "daemon/test_chain.py::test_results_come_first_in_the_order_of_the_calls_then_what_arrived_beside_them",
        f"{HARNESS}::test_a_message_that_lands_during_a_call_comes_after_the_results",
    ),
    "A7 an empty answer": (
        f"{HISTORY}::test_a7_an_empty_answer_leaves_no_empty_message_and_no_two_of_a_persons",
        f"{FAULTS}::test_an_empty_answer_after_a_result_is_said_to_be_empty_and_is_not_asked_for_again",
        f"{FAULTS}::test_an_answer_of_nothing_but_thinking_names_the_limit_it_hit",
    ),
    "A8 thinking that is changed or sent to another": (
        f"{HISTORY}::test_a8_a10_what_was_signed_goes_back_byte_for_byte_after_a_restart",
        f"{HISTORY}::test_a8_three_thinking_blocks_of_one_message_stay_three",
        f"{HISTORY}::test_a8_what_was_thought_is_neither_normalised_nor_trimmed_between_its_stream_and_the_next_request",
        f"{PROVIDER}/test_anthropic.py::test_thinking_goes_back_to_the_model_that_signed_it_alone",
        f"{PROVIDER}/test_wire_property.py::test_of_anothers_thinking_nothing_is_sent_and_of_its_calls_all",
    ),
    "A10 Gemini's signatures": (
        f"{HISTORY}::test_a8_a10_what_was_signed_goes_back_byte_for_byte_after_a_restart",
        f"{PROVIDER}/test_google.py::test_parallel_calls_are_one_content_and_their_results_another_in_the_same_order",
        f"{PROVIDER}/test_google.py::test_the_first_call_of_an_answer_has_its_signature_or_the_word_that_stands_for_one",
    ),
    "A11 arguments that are no object": (
        f"{HISTORY}::test_a11_arguments_that_are_no_object_are_sent_as_one",
        f"{FAULTS}::test_arguments_that_are_no_valid_object_run_nothing_and_each_gets_a_word",
        f"{FAULTS}::test_empty_arguments_are_an_empty_object",
    ),
    "A12 an image that is refused for ever": (
        f"{HISTORY}::test_a12_an_image_is_sent_as_one_that_is_taken_or_a_note_is",
        f"{HARNESS}::test_read_shows_text_images_and_refuses_other_bytes",
        "daemon/harness/test_reads.py::test_an_image_over_the_limits_is_made_smaller_before_it_is_recorded",
        f"{PROVIDER}/test_images.py::test_an_image_cut_anywhere_is_not_one",
    ),
    "A13 half characters and NUL": (
        f"{HISTORY}::test_a13_half_characters_nul_and_bytes_that_are_no_text_leave_valid_json",
        "daemon/protocol/test_records.py::test_lone_surrogates_never_reach_a_file",
        f"{FAULTS}::test_half_characters_nul_and_bytes_that_are_no_text_stay_valid_everywhere",
    ),
    # B: reading the stream
    "B1 characters split between reads": (
        *_of_all("test_a_recording_decodes_the_same_however_it_is_cut"),
        f"{PROVIDER}/test_sse.py::test_any_split_gives_the_same_events",
    ),
    "B2 line ends, comments, fields": (
        *_of_all("test_noise_of_the_format_changes_nothing", "messages", "chat", "responses", "gemini"),
        *_of_all("test_other_line_ends_decode_to_the_same", "messages", "chat", "responses", "gemini"),
        f"{PROVIDER}/test_sse.py::test_every_line_end_gives_the_same_events_whole_and_byte_by_byte",
        f"{PROVIDER}/test_sse.py::test_a_byte_order_mark_at_the_start_is_left_out_however_it_is_cut",
        f"{PROVIDER}/test_sse.py::test_the_last_event_comes_without_its_blank_line_and_without_a_line_end",
    ),
    "B3 characters that Python takes for line ends": (
        f"{PROVIDER}/test_sse.py::test_characters_that_look_like_line_ends_to_python_stay_in_the_line",
        "daemon/statefile/test_append.py::test_text_with_all_kinds_of_line_ends_is_kept",
        f"{EDIT}::test_separators_other_than_newline_are_no_line_ends",
        "daemon/worker/test_files.py::test_any_lines_in_any_pieces_are_those_of_the_file",
    ),
    "B4 a stream that just ends": (
        *_of_all("test_a_recording_cut_before_its_last_event_is_never_complete", "messages", "responses"),
        *_of_all("test_a_recording_is_complete_from_its_finish_reason_on_and_never_before", "chat", "gemini"),
        *_of_all("test_a_recording_cut_anywhere_is_incomplete_before_its_stop", "converse"),
        f"{PROVIDER}/test_http.py::test_a_finished_answer_is_whole_though_the_connection_breaks_after_it",
    ),
    "B5 an error in a stream of status 200": (
        f"{ANSWERS}::test_an_overload_in_the_stream_is_waited_out_and_what_came_before_is_void",
        f"{ANSWERS}::test_exhausted_credit_in_the_stream_is_asked_for_once",
        f"{ANSWERS}::test_an_error_in_a_chunk_is_one_and_no_empty_answer",
        f"{PROVIDER}/test_chat.py::test_an_error_may_be_the_event_itself_or_stand_in_a_choice",
    ),
    "B6 another try after a part of the answer": (
        f"{ANSWERS}::test_an_answer_that_breaks_six_times_is_given_up_and_none_of_it_is_the_answer",
        f"{HARNESS}::test_what_a_broken_try_said_never_counts",
        f"{FAULTS}::test_an_answer_that_breaks_off_three_ways_counts_once_and_its_half_calls_never_run",
        f"{FAULTS}::test_a_reader_is_told_that_what_streamed_before_a_break_is_void",
    ),
    "B7 a silent stream": (
        f"{PROVIDER}/test_http.py::test_a_stream_that_falls_silent_is_given_up",
        f"{PROVIDER}/test_http.py::test_pings_do_not_keep_a_silent_stream_alive",
        f"{PROVIDER}/test_http.py::test_a_slow_answer_may_take_any_time_in_all",
        f"{PROVIDER}/test_http.py::test_a_cancelled_request_closes_its_connection_at_once",
        "e2e/test_stop.py::test_a_stop_cuts_a_stream_that_stalls",
    ),
    "B9 a second start, an early or doubled finish": (
        f"{PROVIDER}/test_messages.py::test_a_second_start_in_one_answer_breaks_it",
        f"{PROVIDER}/test_converse.py::test_a_second_start_in_one_answer_breaks_it",
        f"{PROVIDER}/test_responses.py::test_another_answer_inside_breaks_it",
        f"{PROVIDER}/test_chat.py::test_a_finish_reason_in_every_chunk_does_not_cut_the_text",
        f"{PROVIDER}/test_chat.py::test_a_recording_decodes_to_what_it_says",
        f"{PROVIDER}/test_gemini.py::test_a_finish_reason_in_the_first_empty_chunk_or_in_each_ends_nothing",
    ),
    # C: errors, retries, limits
    "C1 Retry-After": (
        f"{ANSWERS}::test_the_wait_is_what_was_asked_for_and_never_nothing",
        f"{ANSWERS}::test_a_longer_wait_than_is_allowed_fails_at_once_and_names_its_end",
        f"{ANSWERS}::test_googles_wait_in_the_body_alone_is_kept",
        f"{PROVIDER}/test_errors.py::test_every_form_of_retry_after_is_read",
        f"{PROVIDER}/test_http.py::test_a_wait_for_the_next_try_can_be_cancelled",
        "e2e/test_stop.py::test_a_stop_ends_the_wait_for_the_next_try",
    ),
    "C3 a request that stays too long": (
        f"{ANSWERS}::test_every_vendors_words_for_too_long_a_request_are_known",
        f"{ANSWERS}::test_a_request_that_is_too_long_is_sent_once",
        f"{HARNESS}::test_a_provider_that_finds_the_request_too_long_is_asked_once_and_the_session_stays_usable",
        f"{HARNESS}::test_a_smaller_window_stops_a_session_and_a_larger_one_lets_it_go_on",
        f"{HARNESS}::test_past_the_context_limit_nothing_is_called",
    ),
    "C4 streams to our own clients": (
        "daemon/api/test_events.py::test_a_silent_stream_has_comments",
        "daemon/api/test_events.py::test_a_reader_goes_on_by_its_last_id_after_a_restart",
        "daemon/api/test_events.py::test_a_reader_that_stops_reading_is_dropped",
        "e2e/test_api.py::test_200_readers_get_each_record_once_and_in_order_though_the_daemon_is_killed",
    ),
    "C5 two clients, two daemons at once": (
        f"{HARNESS}::test_twenty_posts_at_once_are_all_there_once_with_one_runner",
        f"{HARNESS}::test_five_posts_at_once_under_one_key_are_one",
        f"{HARNESS}::test_a_message_that_lands_as_a_pass_ends_is_answered",
        "e2e/test_api.py::test_20_clients_that_post_at_once_have_20_messages_and_each_is_answered",
        "e2e/test_api.py::test_a_second_daemon_on_the_folder_is_refused_and_names_the_first",
        "daemon/statefile/test_faults.py::test_a_second_daemon_is_refused_and_told_who_holds_the_folder",
    ),
    # D: the session's file
    "D1 a torn last record": (
        "daemon/statefile/test_scan.py::test_a_file_cut_at_any_byte_of_its_last_record_has_a_torn_tail",
        "daemon/statefile/test_append.py::test_a_torn_tail_stays_until_somebody_writes_and_the_log_says_where_it_went",
        "e2e/test_files.py::test_a_torn_tail_is_set_aside_with_a_line_in_the_log_and_nothing_is_glued_to_it",
    ),
    "D2 a full disk": (
        "daemon/statefile/test_faults.py::test_a_full_disk_refuses_and_spoils_nothing",
        f"{DISK}::test_a_post_to_a_full_disk_is_refused_and_leaves_nothing",
        f"{DISK}::test_an_answer_that_cannot_be_recorded_is_not_acted_on",
        f"{DISK}::test_a_disk_that_fills_and_empties_during_a_turn_leaves_no_lie",
    ),
    # E: the shell
    "E1 a child that keeps the pipe": (
        f"{BASH}::test_a_background_process_does_not_keep_a_run_open",
        f"{FAULTS}::test_code_that_waits_for_input_or_leaves_children_ends_at_once",
        f"{SHELL}::test_what_was_printed_before_the_end_is_there_though_something_goes_on",
    ),
    "E2 code that asks somebody": (
        f"{BASH}::test_what_reads_stdin_or_the_terminal_ends_at_once",
        f"{BASH}::test_git_says_that_no_editor_opens_and_leaves_history_alone",
        f"{SHELL}::test_what_asks_for_somebody_at_a_terminal_ends_at_once",
        f"{SHELL}::test_git_asks_nobody_and_rewrites_nothing",
        f"{SHELL}::test_the_terminal_that_the_daemon_was_started_from_is_out_of_reach",
    ),
    "E3 code that breaks or ends the shell": (
        f"{SHELL}::test_code_of_every_broken_kind_ends_as_it_should_and_the_next_runs",
        f"{FAULTS}::test_code_that_breaks_or_ends_the_shell_costs_one_call_and_not_the_next",
    ),
    "E4 a time limit that leaves children": (
        f"{BASH}::test_the_time_limit_ends_a_run_and_keeps_its_output",
        f"{SHELL}::test_at_its_time_limit_a_run_ends_with_all_it_started_and_keeps_its_output",
    ),
    "E5 huge output": (
        f"{OUTPUT}::test_one_huge_line_keeps_its_end_and_counts_as_cut",
        f"{OUTPUT}::test_a_line_is_never_cut_within_a_character",
        f"{SHELL}::test_a_flood_gives_its_end_and_the_file_that_has_the_whole",
        f"{FAULTS}::test_two_gigabytes_of_output_on_three_sessions_leave_memory_flat",
    ),
    "E7 output that is no text": (
        f"{OUTPUT}::test_bytes_that_are_not_utf8_are_replaced",
        f"{SHELL}::test_output_of_every_odd_kind_is_text_in_the_file_and_for_the_model",
        f"{FAULTS}::test_half_characters_nul_and_bytes_that_are_no_text_stay_valid_everywhere",
    ),
    # F: files
    "F1 line ends, a byte order mark, no last line end": (
        f"{EDIT}::test_an_edit_takes_the_line_ending_of_its_place",
        f"{EDIT}::test_a_mixed_file_keeps_the_bytes_of_lines_not_asked_for",
        f"{EDIT}::test_a_lone_carriage_return_and_a_byte_order_mark_stay",
        f"{EDIT}::test_every_kept_line_keeps_its_end_and_every_other_takes_the_one_of_its_place",
        "e2e/test_file_tools.py::test_writes_keep_modes_links_and_line_ends_and_leave_nothing_where_they_fail",
    ),
}


@cache
def collected(file: str) -> frozenset[str]:
    """The tests in a file, as pytest collects them."""
    tree = ast.parse((TESTS / file).read_bytes())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("case", KNOWN)
def test_each_known_fault_has_its_tests(case: str) -> None:
    assert KNOWN[case]
    missing = [
        test
        for test in KNOWN[case]
        if not (TESTS / test.partition("::")[0]).is_file()
        or test.partition("::")[2] not in collected(test.partition("::")[0])
    ]
    assert missing == []


def test_no_case_is_left_out() -> None:
    """By letter and number; a number that is missing here is one of what we have not, as compaction of our own."""
    numbers = {
        "A": (1, 2, 3, 4, 7, 8, 10, 11, 12, 13),
        "B": (1, 2, 3, 4, 5, 6, 7, 9),
        "C": (1, 3, 4, 5),
        "D": (1, 2),
        "E": (1, 2, 3, 4, 5, 7),
        "F": (1,),
    }
    assert [case.split()[0] for case in KNOWN] == [f"{part}{n}" for part in numbers for n in numbers[part]]
