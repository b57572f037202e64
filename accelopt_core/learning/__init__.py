"""What a measured attempt teaches: an experience with its numbers, and the operators that memory finds kin by."""
